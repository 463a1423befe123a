"""Writes products and convolutions as operators that Inductor makes Triton of, where a task does not admit those of torch.

A product of matrices has a Triton template; a convolution has one in two dimensions without groups. All others become what they
are by definition, a sum over channels and the places of a filter, of which Inductor makes one reduction kernel that reads its
inputs in place: nothing is unfolded into memory. That is no fast convolution, but a correct start in plain Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

aten: Any = torch.ops.aten


def decompositions(products: str) -> Mapping[Any, Callable[..., Any]]:
    """Inductor's own but for variances, and for ``template`` and ``plain`` those of this module.

    Args:
        products: ``extern``: products and convolutions stay operators of torch. ``template``: products stay, for templates, and so do
            convolutions that have one. ``plain``: sums take their place.
    """
    from torch._inductor.decomposition import select_decomp_table

    table = dict(select_decomp_table())
    table[aten.var_mean.correction] = _var_mean
    table[aten.var.correction] = lambda *args, **kwargs: _var_mean(*args, **kwargs)[0]
    if products == "extern":
        return table
    table[aten.convolution.default] = convolution_as_sum if products == "plain" else convolution
    table[aten.avg_pool3d.default] = _avg_pool3d
    if products == "plain":
        table[aten.mm.default] = lambda a, b: (a.unsqueeze(2) * b.unsqueeze(0)).sum(1)
        table[aten.bmm.default] = lambda a, b: (a.unsqueeze(3) * b.unsqueeze(1)).sum(2)
    table[aten.addmm.default] = _addmm
    table[aten.baddbmm.default] = _baddbmm
    return table


def _var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """In two plain sums, which read better than a running variance and are no less exact."""
    dims = list(range(x.dim())) if dim is None or len(dim) == 0 else list(dim)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    count: Any = 1
    for axis in dims:
        count = count * x.shape[axis]
    mean = wide.sum(dims, keepdim=True) / count
    off = wide - mean
    divisor = count - (1 if correction is None else correction)
    var = (off * off).sum(dims, keepdim=True) / divisor
    if not keepdim:
        var, mean = (item.squeeze(dims) for item in (var, mean))
    return var.to(x.dtype), mean.to(x.dtype)


def _addmm(added: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _scaled(aten.mm(a, b), alpha) + _scaled(added, beta)


def _baddbmm(added: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = _scaled(aten.bmm(a, b), alpha)
    return product if beta == 0 else product + _scaled(added, beta)


def _scaled(value: Tensor, factor: float) -> Tensor:
    return value if factor == 1 else value * factor


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """A sum, unless there is a template."""
    plain = not transposed and groups == 1 and all(item == 1 for item in dilation)
    sizes = (*x.shape, *weight.shape)
    if plain and x.dim() == 4 and all(isinstance(size, int) for size in sizes) and x.shape[1] >= 16:
        return NotImplemented
    return convolution_as_sum(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


def convolution_as_sum(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """Any convolution as a sum of products of what the filter's places see."""
    spatial = x.dim() - 2
    stride, padding, dilation = (_each(item, spatial) for item in (stride, padding, dilation))
    output_padding = _each(output_padding, spatial)
    channels = x.shape[1] // groups
    places, inside, sizes = [], None, []
    for axis in range(spatial):
        length, taps = x.shape[2 + axis], weight.shape[2 + axis]
        reach = dilation[axis] * (taps - 1) + 1
        tap = torch.arange(taps, device=x.device) * dilation[axis]
        if transposed:
            size = (length - 1) * stride[axis] - 2 * padding[axis] + reach + output_padding[axis]
            at = torch.arange(size, device=x.device)[:, None] + padding[axis] - tap[None]
            valid = (at >= 0) & (at % stride[axis] == 0) & (at // stride[axis] < length)
            at = at // stride[axis]
        else:
            size = (length + 2 * padding[axis] - reach) // stride[axis] + 1
            at = torch.arange(size, device=x.device)[:, None] * stride[axis] - padding[axis] + tap[None]
            valid = (at >= 0) & (at < length)
        form = [1] * (2 * spatial)
        form[2 * axis : 2 * axis + 2] = [size, taps]
        places.append(at.clamp(0, length - 1).view(form))
        valid = valid.view(form)
        inside = valid if inside is None else inside & valid
        sizes.append(size)
    assert inside is not None
    grouped = x.view(x.shape[0], groups, channels, *x.shape[2:])
    seen = aten._unsafe_index(grouped, [None, None, None, *places])
    seen = torch.where(inside, seen, 0.0).unsqueeze(2)
    filters = _filters(weight, groups, channels, spatial, transposed=transposed)
    summed = (seen * filters).sum([3, *(5 + 2 * axis for axis in range(spatial))])
    result = summed.reshape(x.shape[0], -1, *sizes)
    return result if bias is None else result + bias.view(1, -1, *([1] * spatial))


def _avg_pool3d(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Of large windows Inductor makes nothing; a sum with equal weights is one."""
    if x.dim() != 5 or ceil_mode or (any(padding) and not count_include_pad):
        return NotImplemented
    taps = _each(kernel_size, 3)
    count = divisor_override or taps[0] * taps[1] * taps[2]
    weight = torch.ones((1, 1, *taps), dtype=x.dtype, device=x.device)
    single = x.reshape(-1, 1, *x.shape[2:])
    summed = convolution_as_sum(single, weight, None, list(stride) or taps, padding, [1], False, [0], 1)
    return summed.view(*x.shape[:2], *summed.shape[2:]) / count


def _filters(weight: Tensor, groups: int, channels: int, spatial: int, *, transposed: bool) -> Tensor:
    """Batch, group, filter, channel and then a size of 1 and the taps of each axis."""
    taps = weight.shape[2:]
    if transposed:
        split = weight.view(groups, channels, weight.shape[1], *taps).transpose(1, 2)
    else:
        split = weight.view(groups, weight.shape[0] // groups, channels, *taps)
    for axis in range(spatial):
        split = split.unsqueeze(3 + 2 * axis)
    return split.unsqueeze(0)


def _each(values: Sequence[int], count: int) -> list[int]:
    return list(values) * count if len(values) == 1 else list(values)
