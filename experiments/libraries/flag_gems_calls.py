"""FlagGems' kernels, called with a task's arguments (https://github.com/flagos-ai/FlagGems, its wheel). They load where there is a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def _gems() -> Any:
    return importlib.import_module("flag_gems")


def argmax(x: Tensor) -> Any:
    """Of rows."""
    return _gems().argmax(x, dim=-1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Causal."""
    return importlib.import_module("flag_gems.ops.attention").scaled_dot_product_attention(q, k, v, is_causal=True)


def avg_pool2d(x: Tensor, kernel: int, stride: int, padding: int) -> Any:
    """As it is."""
    return _gems().avg_pool2d(x, kernel, stride, padding)


def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> Any:
    """In training."""
    return _gems().batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps)[0]


def conv2d(x: Tensor, weight: Tensor, stride: int, padding: int) -> Any:
    """Channels come second there."""
    y = _gems().conv2d(x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2), None, stride, padding)
    return y.permute(0, 2, 3, 1).contiguous()


def cross_entropy(logits: Tensor, labels: Tensor) -> Any:
    """For each row."""
    return _gems().cross_entropy_loss(logits, labels, reduction="none")


def cumulative_sum(x: Tensor) -> Any:
    """Of rows."""
    return _gems().cumsum(x, dim=-1)


def depthwise_conv2d(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    """Each channel a group."""
    return _gems().conv2d(x, weight[:, None], bias, 1, weight.shape[-1] // 2, 1, x.shape[1])


def embedding(ids: Tensor, weight: Tensor) -> Any:
    """As it is."""
    return _gems().embedding(weight, ids)


def gemm_tf32(a: Tensor, b: Tensor) -> Any:
    """As it is."""
    return _gems().mm(a, b)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Any:
    """Then SiLU by torch."""
    images, channels, *rest = x.shape
    normal = _gems().group_norm(x, weight, bias, images, channels, rest[0] * rest[1], groups, eps)[0]
    return torch.nn.functional.silu(normal)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Any:
    """As it is."""
    return _gems().layer_norm(x, (x.shape[-1],), weight, bias, eps)[0]


def max_pool2d(x: Tensor, kernel: int, stride: int, padding: int) -> Any:
    """With places."""
    return _gems().max_pool2d_with_indices(x, kernel, stride, padding)


def rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Any:
    """It overwrites what it is given, so copies of them."""
    return _gems().fused_add_rms_norm(x.clone(), residual.clone(), (x.shape[-1],), weight, eps)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
    """Each token at its own place."""
    places = torch.arange(q.shape[0], device=q.device)
    return _gems().apply_rotary_pos_emb(q, k, cos, sin, places)


def softmax(x: Tensor) -> Any:
    """Of rows."""
    return _gems().softmax(x, -1)


def softmax_backward(dy: Tensor, y: Tensor) -> Any:
    """Of rows."""
    return _gems().softmax_backward(dy, y, -1, y.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Any:
    """As it is."""
    return _gems().silu_and_mul(gate, up)


def top_k(x: Tensor, k: int) -> Any:
    """Of rows."""
    values, columns = _gems().topk(x, k, dim=-1)
    return values, columns.to(torch.int32)


CALLS: Mapping[str, Callable[..., Any]] = {
    call.__name__: call
    for call in (
        argmax, attention, avg_pool2d, batch_norm, conv2d, cross_entropy, cumulative_sum, depthwise_conv2d, embedding, gemm_tf32,
        group_norm, layer_norm, max_pool2d, rms_norm, rope, softmax, softmax_backward, swiglu, top_k,
    )
}  # fmt: skip
"""Task → call."""
