"""Runs a reference as if every operator rounded by chance, which shows how far rounding moves each output where terms cancel.

This is Monte Carlo arithmetic (Parker, Monte Carlo Arithmetic, UCLA 1997; CESTAC, Vignes 1993) by the operator: what an operator computes
is multiplied by 1 + ε u with u uniform in [−1, 1], anew for each element. What only moves or selects values is exact in any
precision and left alone. The same values always lead to the same perturbations on one kind of device.

What an operator decides (a comparison, an index, a rounded position) is taken from the same computation without chance: else two
positions that are equal would differ by chance, a mask that is built of such would lose its border, and every answer would be right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# fmt: off
EXACT = frozenset((
    "abs", "amax", "amin", "bernoulli", "cat", "clamp", "clamp_max", "clamp_min", "clone",
    "constant_pad_nd", "copy", "copysign", "cummax", "cummin", "diagonal", "embedding", "empty", "empty_like",
    "empty_strided", "expand", "fill", "flip", "full", "full_like", "gather", "index", "index_put", "index_select",
    "lift_fresh", "masked_fill", "masked_scatter", "max", "max_pool2d_with_indices", "maximum", "min", "minimum", "neg",
    "new_empty", "new_full", "new_ones", "new_zeros", "one_hot", "ones", "ones_like", "permute", "relu", "repeat",
    "reshape", "resize", "roll", "scalar_tensor", "scatter", "select_backward", "select_scatter",
    "slice_backward", "slice_scatter", "sort", "split", "stack", "threshold_backward", "to_copy", "topk", "tril", "triu",
    "unfold", "view", "where", "zero", "zeros", "zeros_like"
))
# fmt: on
"""Operators of torch (without leading and trailing underscores) that do not round."""
DECIDING = frozenset(("ceil", "floor", "floor_divide", "fmod", "frac", "heaviside", "remainder", "round", "sgn", "sign", "trunc"))
"""Those whose real results jump, and so are decisions like results that are no real numbers."""


def as_wide_as(accumulator: torch.dtype) -> Mapping[torch.dtype, float]:
    """For a computation in float64 that stands for one in `accumulator`."""
    return {torch.float64: torch.finfo(accumulator).eps}


NATIVE: Mapping[torch.dtype, float] = {
    dtype: torch.finfo(dtype).eps / 2 for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}
"""For a computation in its own dtypes: each result may round to a neighbour."""
_WIDER = {torch.float32: torch.float64, torch.float16: torch.float32, torch.bfloat16: torch.float32}


class Departed(Exception):
    """A computation that rounds by chance does something else than the one without chance."""


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, what this thread's operators decide is kept.

    Attributes:
        decisions: Name of each operator that decided something, and what.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.decisions: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls the operator and keeps what it decided."""
        result = func(*args, **(kwargs or {}))
        decided = _decisions(func, args, kwargs or {}, result)
        if decided:
            # Copies, for the reference may go on to write into a mask.
            kept = (leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in decided)
            self.decisions.append((func.name(), tuple(kept)))
        return result


class Perturbing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, results of this thread's operators are perturbed.

    Args:
        epsilons: Largest relative perturbation by dtype; results of others are left alone.
        seed: Of the perturbations.
        decisions: Of the same computation, see `Recording`.
    """

    def __init__(
        self, epsilons: Mapping[torch.dtype, float], seed: int, decisions: Sequence[tuple[str, tuple[Any, ...]]]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._epsilons = epsilons
        self._seed = seed
        self._decisions: Iterator[tuple[str, tuple[Any, ...]]] = iter(decisions)
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls the operator and perturbs what it computed.

        Raises:
            Departed: It decides, and was not what came next in the computation without chance.
        """
        result = func(*args, **(kwargs or {}))
        decided = _decisions(func, args, kwargs or {}, result)
        if decided:
            result = self._as_decided(func, result, decided)
        if (_name(func) in EXACT and not _narrows(args, result)) or _name(func) in DECIDING or func.is_view:
            return result
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and _is_dense(tensor) and tensor.dtype in self._epsilons and tensor.numel():
                # Below autograd, and before anybody else has seen a new result: changing it in place is no mutation that counts.
                wide = tensor.to(_WIDER.get(tensor.dtype, tensor.dtype))
                tensor.copy_(self._factors(wide, self._epsilons[tensor.dtype]).mul_(wide))
        return result

    def _as_decided(self, func: Any, result: Any, decided: Sequence[Any]) -> Any:
        name, recorded = next(self._decisions, ("", ()))
        if name != func.name() or len(recorded) != len(decided):
            raise Departed(func.name())
        for ours, theirs in zip(decided, recorded, strict=True):
            if not isinstance(ours, torch.Tensor):
                continue
            if ours.shape != theirs.shape:
                raise Departed(func.name())
            ours.copy_(theirs)
        return result if isinstance(decided[0], torch.Tensor) else recorded[0]

    def _factors(self, wide: torch.Tensor, epsilon: float) -> torch.Tensor:
        generator = self._generators.get(wide.device)
        if generator is None:
            generator = torch.Generator(wide.device).manual_seed(self._seed)
            self._generators[wide.device] = generator
        return torch.empty_like(wide).uniform_(1 - epsilon, 1 + epsilon, generator=generator)


def _decisions(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> tuple[Any, ...]:
    """The results of an operator that are decisions."""
    if not any(_is_real(leaf) for leaf in tree_leaves((args, kwargs))):
        return ()
    jumps = _name(func) in DECIDING or kwargs.get("rounding_mode") is not None
    leaves = (leaf for leaf in tree_leaves(result) if leaf is not None)
    return tuple(
        leaf for leaf in leaves if not isinstance(leaf, torch.Tensor) or (_is_dense(leaf) and (jumps or not _is_real(leaf)))
    )


def _narrows(args: Sequence[Any], result: Any) -> bool:
    """Whether a copy is in a format that holds less than what was copied: it rounds."""
    return _is_real(result) and any(
        _is_real(leaf) and torch.finfo(leaf.dtype).eps < torch.finfo(result.dtype).eps for leaf in tree_leaves(args)
    )


def _name(func: Any) -> str:
    return str(func._schema.name).split("::")[-1].strip("_")


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and (leaf.dtype.is_floating_point or leaf.dtype.is_complex)


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided
