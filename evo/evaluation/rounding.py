"""Runs a reference as if every operator rounded by chance, which shows how far rounding moves each output where terms cancel.

This is Monte Carlo arithmetic (Parker, Monte Carlo Arithmetic, UCLA 1997; CESTAC, Vignes 1993) by the operator: what an operator computes
is multiplied by 1 + ε u with u uniform in [−1, 1], anew for each element. What only moves, selects or compares values is exact in any
precision and left alone. The same values always lead to the same perturbations on one kind of device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# fmt: off
EXACT = frozenset((
    "abs", "amax", "amin", "argmax", "argmin", "bernoulli", "cat", "ceil", "clamp", "clamp_max", "clamp_min", "clone",
    "constant_pad_nd", "copy", "copysign", "cummax", "cummin", "diagonal", "embedding", "empty", "empty_like",
    "empty_strided", "expand", "fill", "flip", "floor", "full", "full_like", "gather", "index", "index_put", "index_select",
    "lift_fresh", "masked_fill", "masked_scatter", "max", "max_pool2d_with_indices", "maximum", "min", "minimum", "neg",
    "new_empty", "new_full", "new_ones", "new_zeros", "one_hot", "ones", "ones_like", "permute", "relu", "repeat",
    "reshape", "resize", "roll", "round", "scalar_tensor", "scatter", "select_backward", "select_scatter", "sign",
    "slice_backward", "slice_scatter", "sort", "split", "stack", "threshold_backward", "to_copy", "topk", "tril", "triu",
    "trunc", "unfold", "view", "where", "zero", "zeros", "zeros_like"
))
# fmt: on
"""Operators of torch (without leading and trailing underscores) that do not round."""


def as_wide_as(accumulator: torch.dtype) -> Mapping[torch.dtype, float]:
    """For a computation in float64 that stands for one in `accumulator`."""
    return {torch.float64: torch.finfo(accumulator).eps}


NATIVE: Mapping[torch.dtype, float] = {
    dtype: torch.finfo(dtype).eps / 2 for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}
"""For a computation in its own dtypes: each result may round to a neighbour."""
_WIDER = {torch.float32: torch.float64, torch.float16: torch.float32, torch.bfloat16: torch.float32}


class Perturbing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, results of this thread's operators are perturbed.

    Args:
        epsilons: Largest relative perturbation by dtype; results of others are left alone.
        seed: Of the perturbations.
    """

    def __init__(self, epsilons: Mapping[torch.dtype, float], seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._epsilons = epsilons
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls the operator and perturbs what it computed."""
        result = func(*args, **(kwargs or {}))
        if func._schema.name.split("::")[-1].strip("_") in EXACT or func.is_view:
            return result
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.dtype in self._epsilons and tensor.numel():
                # Below autograd, and before anybody else has seen a new result: changing it in place is no mutation that counts.
                wide = tensor.to(_WIDER.get(tensor.dtype, tensor.dtype))
                tensor.copy_(wide * self._factors(wide, self._epsilons[tensor.dtype]))
        return result

    def _factors(self, wide: torch.Tensor, epsilon: float) -> torch.Tensor:
        generator = self._generators.get(wide.device)
        if generator is None:
            generator = torch.Generator(wide.device).manual_seed(self._seed)
            self._generators[wide.device] = generator
        return torch.empty_like(wide).uniform_(1 - epsilon, 1 + epsilon, generator=generator)
