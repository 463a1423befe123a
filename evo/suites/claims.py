"""Tensors on the CPU that claim to be on a GPU, for a suite's own scripts in a sandbox; of large ones only the beginning has values.

What a script measures is large, and of its tensors only the layout and how the beginning looks are noted. So large tensors are memory that
was never touched but for their beginning, and products of large tensors are not computed: their operands have no values to speak of. That
memory is fresh, and so zero: what an allocator gives may hold what another tensor left, and a part would look like that.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from evo.suites.entries import LARGE, LOOKED_AT
from evo.tracing.facade import CLAIMED_OF_REAL, Claiming

_DRAWS: dict[Any, Any] = {
    torch.rand: torch.rand, torch.randn: torch.randn, torch.rand_like: torch.rand, torch.randn_like: torch.randn,
    torch.randint: torch.randint,
}  # fmt: skip
_DRAWS_IN_PLACE = {
    torch.Tensor.normal_,
    torch.Tensor.uniform_,
    torch.Tensor.random_,
    torch.nn.init.normal_,
    torch.nn.init.uniform_,
}
_PRODUCTS = {
    torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.mm, torch.Tensor.mm, torch.bmm,
    torch.Tensor.bmm, torch.addmm, torch.Tensor.addmm, torch.baddbmm, torch.Tensor.baddbmm, torch.einsum, torch.tensordot, F.linear,
    F.conv1d, F.conv2d, F.conv3d, torch.conv1d, torch.conv2d, torch.conv3d, F.scaled_dot_product_attention,
}  # fmt: skip
_EMPTY = {torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty}
_BACKWARD = {torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad}


class Claims(Claiming):
    """Tensors on the CPU say that they are on the GPU; devices on the way in become the CPU.

    Args:
        differentiated: Called where gradients are asked for.
    """

    claimed = CLAIMED_OF_REAL

    def __init__(self, differentiated: Callable[[], None]) -> None:
        super().__init__()
        self._differentiated = differentiated

    def called(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """See `Claiming`."""
        if func in _BACKWARD:
            self._differentiated()
        args = tuple(map(_on_host, args))
        keywords = {key: _on_host(item) for key, item in keywords.items() if key != "pin_memory"}
        if func in _DRAWS:
            return _drawn(func, args, keywords)
        if func in _DRAWS_IN_PLACE and args[0].numel() >= LARGE and args[0].is_contiguous():
            func(args[0].view(-1)[:LOOKED_AT], *args[1:], **keywords)
            return args[0]
        if func in _PRODUCTS and any(item.numel() >= LARGE for item in tensors_of((*args, *keywords.values()))):
            return _product(func, args, keywords)
        result = func(*args, **keywords)
        if func in _EMPTY:
            return _untouched(result) if result.numel() >= LARGE else result.zero_()
        return result


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Those in tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return [found for part in parts for found in tensors_of(part)]


def _drawn(func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> torch.Tensor:
    """What the call draws; of a large tensor only what is looked at, and the rest is memory that was never touched."""
    with torch._C.DisableTorchFunction():
        like = func(*args, **{**{key: item for key, item in keywords.items() if key != "generator"}, "device": "meta"})
        if like.numel() < LARGE:
            return func(*args, **keywords)  # type: ignore[no-any-return]
        whole = _untouched(like)
        limits = [item for item in args if isinstance(item, int)][:2] if func is torch.randint else []
        limits = [int(keywords[key]) for key in ("low", "high") if key in keywords] or limits
        beginning = _DRAWS[func](*limits, (LOOKED_AT,), dtype=like.dtype)
        whole.view(-1)[:LOOKED_AT].copy_(beginning)
        return whole.requires_grad_(bool(keywords.get("requires_grad", False)))


def _product(func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Memory in place of a product of large tensors; the product itself where gradients will be asked of it."""
    with torch._C.DisableTorchFunction():
        if torch.is_grad_enabled() and any(item.requires_grad for item in tensors_of((*args, *keywords.values()))):
            return func(*args, **keywords)
        like = func(*_on_meta(args), **_on_meta(keywords))
        return _untouched(like)


def _untouched(like: torch.Tensor) -> torch.Tensor:
    """Zeros with the layout of a tensor that has memory of its own, in pages that the kernel provides once they are touched."""
    with torch._C.DisableTorchFunction():
        nbytes = like.element_size() * (1 + sum((size - 1) * step for size, step in zip(like.shape, like.stride(), strict=True)))
        pages = torch.frombuffer(mmap.mmap(-1, max(nbytes, 1)), dtype=torch.uint8)
        fresh = torch.empty(0, dtype=like.dtype).set_(pages.untyped_storage(), 0, like.shape, like.stride())
        return fresh.requires_grad_(like.requires_grad)


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if isinstance(value, dict):
        return {key: _on_meta(item) for key, item in value.items()}
    return type(value)(map(_on_meta, value)) if isinstance(value, tuple | list) else value


def _on_host(item: Any) -> Any:
    if isinstance(item, torch.device) or (isinstance(item, str) and item.split(":")[0] == "cuda"):
        return torch.device("cpu")
    return item
