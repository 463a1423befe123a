"""What torch itself offers for a task besides its reference: cuBLAS, cuDNN, flash attention and its fused kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

aten: Any = torch.ops.aten


def adamw(
    weights: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    step: int,
) -> None:
    """The fused step of `torch.optim.AdamW`."""
    counter = torch.full((), step - 1, dtype=torch.float32, device=weights.device)
    aten._fused_adamw_.default(
        [weights], [gradient], [first], [second], [], [counter.add_(1)], lr=lr, beta1=beta1, beta2=beta2, weight_decay=decay, eps=eps,
        amsgrad=False, maximize=False,
    )  # fmt: skip


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention_backward(dy: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """The backward pass of flash attention, after the forward pass that it needs."""
    with torch.enable_grad():
        wanted = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        return torch.autograd.grad(F.scaled_dot_product_attention(*wanted, is_causal=True), wanted, dy)


def conv1d_causal(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each channel a group."""
    y = F.conv1d(x, weight[:, None], bias, padding=weight.shape[1] - 1, groups=x.shape[1])
    return F.silu(y[..., : x.shape[2]])


def depthwise_conv2d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each channel a group."""
    return F.conv2d(x, weight[:, None], bias, padding=weight.shape[-1] // 2, groups=x.shape[1])


def dropout(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """With the device's own generator."""
    return F.dropout(x, p, training=True)


def gemm_fp8(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor) -> Tensor:
    """cuBLAS, scaled by rows."""
    left, right = a.view(torch.float8_e4m3fn), b.view(torch.float8_e4m3fn)
    return torch._scaled_mm(left, right.t(), a_scale[:, None], b_scale[None, :], out_dtype=torch.bfloat16)


def gemm_int8(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor) -> Tensor:
    """cuBLAS, then the scales."""
    return (torch._int_mm(a, b.t()) * a_scale[:, None] * b_scale[None, :]).to(torch.bfloat16)


def gemm_swiglu(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """One product for both, then the gate."""
    left, right = (x @ torch.cat([gate, up], dim=1)).chunk(2, dim=1)
    return F.silu(left) * right


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """In the dtype of the input."""
    return F.silu(F.group_norm(x, groups, weight, bias, eps))


def grouped_gemm(x: Tensor, weights: Tensor, starts: Tensor) -> Tensor:
    """CUTLASS."""
    return torch._grouped_mm(x, weights, offs=starts[1:])


def histogram(x: Tensor, bins: int) -> Tensor:
    """Of whole numbers."""
    return torch.histc(x, bins, 0, bins).to(torch.int32) if x.is_floating_point() else _counts(x, bins)


def _counts(x: Tensor, bins: int) -> Tensor:
    inside = x[(x >= 0) & (x < bins)]
    return torch.bincount(inside, minlength=bins).to(torch.int32)


def layer_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, ...]:
    """Its statistics come from the forward pass."""
    shape, bias = [x.shape[-1]], torch.zeros_like(weight)
    _, mean, rstd = aten.native_layer_norm.default(x, shape, weight, bias, eps)
    grads: tuple[Tensor, ...] = aten.native_layer_norm_backward.default(
        dy, x, shape, mean, rstd, weight, bias, [True, True, True]
    )
    return grads


def rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum, then the fused norm."""
    total = x + residual
    return F.rms_norm(total, (x.shape[-1],), weight, eps), total


def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, ...]:
    """Through the forward pass that it needs."""
    with torch.enable_grad():
        wanted = [tensor.detach().requires_grad_() for tensor in (x, weight)]
        return torch.autograd.grad(F.rms_norm(wanted[0], (x.shape[-1],), wanted[1], eps), wanted, dy)


def softmax_backward(dy: Tensor, y: Tensor) -> Tensor:
    """Fused."""
    gradient: Tensor = aten._softmax_backward_data.default(dy, y, -1, y.dtype)
    return gradient


def top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Which of equal elements comes first is not said."""
    values, columns = torch.topk(x, k, dim=-1)
    return values, columns.to(torch.int32)


CALLS: Mapping[str, Callable[..., Any]] = {
    call.__name__: call
    for call in (
        adamw, attention, attention_backward, conv1d_causal, depthwise_conv2d, dropout, gemm_fp8, gemm_int8, gemm_swiglu, group_norm,
        grouped_gemm, histogram, layer_norm_backward, rms_norm, rms_norm_backward, softmax_backward, top_k,
    )
}  # fmt: skip
"""Task → call. References that are one call of torch already have no other here."""
