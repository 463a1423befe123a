"""Walks equally shaped tensors tile by tile, so that comparing needs little memory beyond the tensors themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

MIN_TILE = 64
MAX_TILE = 1 << 20
CHUNK_ELEMENTS = 1 << 23
"""Elements converted at a time: 64 MiB per float64 temporary."""
ELEMENT_SHARE = 1 / 16
"""Share of a tile's largest magnitude that an element's own magnitude is raised by before its error is set against it: where terms
cancel, the error is that of the terms."""
ROUNDING_SHARE = 1 / 128
"""The same for the rounding of results, which knows no neighbours; the rest is for results that are summed from rounded ones."""


def tile_size(tensor: torch.Tensor) -> int:
    """Elements per tile: a row of the last dimension; short rows joined to `MIN_TILE`, very long ones cut at `MAX_TILE`."""
    last = tensor.shape[-1] if tensor.dim() else 1
    joined = last if last >= MIN_TILE else last * math.ceil(MIN_TILE / last)
    return max(1, min(joined, tensor.numel(), MAX_TILE))


def tiles(
    tile: int,
    *tensors: torch.Tensor,
    device: torch.device,
    dtype: torch.dtype = torch.float64,
    overlap: bool = True,
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Pieces [some tiles, tile] of the tensors, converted to `dtype` on `device`, in order.

    A rest shorter than a tile comes last: as the final `tile` elements, which repeats some, or alone without `overlap`.
    """
    flat = [tensor.reshape(-1) for tensor in tensors]
    count = flat[0].numel()
    step = max(1, CHUNK_ELEMENTS // tile) * tile
    whole = count - count % tile
    for start in range(0, whole, step):
        stop = min(start + step, whole)
        yield tuple(item[start:stop].to(device).to(dtype).reshape(-1, tile) for item in flat)
    if whole < count:
        first = count - tile if overlap else whole
        yield tuple(item[first:].to(device).to(dtype).reshape(1, -1) for item in flat)


def errors(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """|x − y| and |y|, with places that are not finite in either counted as exact: their masks are judged apart."""
    finite = torch.isfinite(x) & torch.isfinite(y)
    zero = torch.zeros((), dtype=torch.float64, device=y.device)
    return torch.where(finite, (x - y).abs(), zero), torch.where(torch.isfinite(y), y.abs(), zero)


@dataclass(frozen=True)
class ElementAllowance:
    """How far a single element may be off: max(shown · raised, rounding · barely raised + inside · raised + absolute), where its
    magnitude is raised by `ELEMENT_SHARE`, or barely, by `ROUNDING_SHARE`, of the largest in its tile.

    Attributes:
        shown: Worst error of the reference, relative to the raised magnitude, times what is accepted of it, for each tile, [tiles, 1].
        rounding, inside: Floors for rounding of results, and for arithmetic before it.
        absolute: What is lost below the smallest numbers, [1, 1], or more at each element of the one tile, [1, tile].
        amplified: What is added at every element of a tile because rounding is amplified there, [tiles, 1].
    """

    shown: torch.Tensor
    rounding: float
    inside: float
    absolute: torch.Tensor
    amplified: torch.Tensor

    def of(self, y_size: torch.Tensor, first: int) -> torch.Tensor:
        """Largest error of each element, from |y| of whole tiles; `first` is the number of the first of them."""
        largest = y_size.amax(dim=1, keepdim=True)
        these = slice(first, first + len(y_size))
        floor = self.rounding * (y_size + ROUNDING_SHARE * largest) + self.inside * raised(y_size) + self.absolute
        return torch.maximum(self.shown[these] * raised(y_size), floor) + self.amplified[these]


def raised(y_size: torch.Tensor) -> torch.Tensor:
    """|y| raised by `ELEMENT_SHARE` of the largest in its tile."""
    return y_size + ELEMENT_SHARE * y_size.amax(dim=1, keepdim=True)


def shown(error: torch.Tensor, y_size: torch.Tensor) -> torch.Tensor:
    """Worst error of each tile, relative to the raised magnitude; none where all of the tile is zero."""
    size = raised(y_size)
    return torch.where(size > 0, error / size, torch.zeros_like(error)).amax(dim=1)


def special_mask(c: torch.Tensor, y: torch.Tensor, r: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Where NaN or infinity are as expected.

    y beyond the range of the output dtype is expected as infinity; within eight epsilons of that border either is right. Where y is
    finite but the reference r itself overflows on the way there, c may show exactly what r shows, or be finite and as right
    as anywhere.
    """
    info = torch.finfo(dtype)
    border = torch.isfinite(y) & ((y.abs() / info.max - 1).abs() <= 8 * info.eps)
    expected = y.to(dtype).to(torch.float64)
    allowed = _same(c, expected) | (~torch.isfinite(r) & torch.isfinite(expected) & _same(c, r))
    return allowed | (border & ~c.isnan() & (c.sign() == y.sign()))


def row_norms(x: torch.Tensor) -> torch.Tensor:
    """Euclidean norm of each row, without the overflow and underflow of squares."""
    largest = x.amax(dim=1)
    scale = torch.where((largest > 0) & torch.isfinite(largest), largest, torch.ones_like(largest))
    return (x / scale[:, None]).square().sum(dim=1).sqrt() * scale


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as its real and imaginary parts, which alternate in the last dimension; any other as it is."""
    if not tensor.is_complex():
        return tensor
    return torch.view_as_real(tensor.resolve_conj()).flatten(max(tensor.dim() - 1, 0))


def _same(c: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return (torch.isfinite(c) & torch.isfinite(expected)) | (c == expected) | (c.isnan() & expected.isnan())
