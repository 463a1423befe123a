"""Liger's kernels, called with a task's arguments: https://github.com/linkedin/Liger-Kernel, from its wheel."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def _function(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Without a gradient the logits are left as they are."""
    loss: Tensor = _function("cross_entropy", "LigerCrossEntropyFunction").apply(logits, labels, None, -100, 0.0, 0.0, "none")[0]
    return loss


def fused_linear_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """In chunks of tokens."""
    call = _function("fused_linear_cross_entropy", "LigerFusedLinearCrossEntropyFunction")
    loss: Tensor = call.apply(x, weight, labels, None, None, -100, 0.0, 0.0, "none")[0]
    return loss


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """Then SiLU by torch."""
    normal = _function("group_norm", "LigerGroupNormFunction").apply(x, weight, bias, x.shape[1], groups, eps)
    return torch.nn.functional.silu(normal)


def kl_divergence(log_q: Tensor, p: Tensor) -> Tensor:
    """Sums of rows by torch."""
    products: Tensor = _function("kl_div", "LigerKLDivLossFunction").apply(log_q, p, "none", False, 1e-30)
    return products.sum(dim=-1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """As it is."""
    y: Tensor = _function("layer_norm", "LigerLayerNormFunction").apply(x, weight, bias, eps)
    return y


def layer_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, ...]:
    """Through the forward pass that it needs."""
    with torch.enable_grad():
        wanted = [tensor.detach().requires_grad_() for tensor in (x, weight, torch.zeros_like(weight))]
        return torch.autograd.grad(layer_norm(wanted[0], wanted[1], wanted[2], eps), wanted, dy)


def rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """With the sum fused."""
    y, total = _function("fused_add_rms_norm", "LigerFusedAddRMSNormFunction").apply(
        x, residual, weight, eps, 0.0, "llama", False
    )
    return y, total


def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, ...]:
    """Through the forward pass that it needs."""
    with torch.enable_grad():
        wanted = [tensor.detach().requires_grad_() for tensor in (x, weight)]
        y = _function("rms_norm", "LigerRMSNormFunction").apply(wanted[0], wanted[1], eps, 0.0, "llama", False)
        return torch.autograd.grad(y, wanted, dy)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """It turns its arguments in place, so copies of them; heads come before tokens there."""
    wide = [torch.cat([angle, angle], dim=-1)[None] for angle in (cos, sin)]
    turned = _function("rope", "LigerRopeFunction").apply(*(x.clone().transpose(0, 1)[None] for x in (q, k)), *wide)
    return tuple(x[0].transpose(0, 1) for x in turned)


def softmax(x: Tensor) -> Tensor:
    """As it is."""
    y: Tensor = _function("softmax", "LigerSoftmaxFunction").apply(x)
    return y


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """As it is."""
    y: Tensor = _function("swiglu", "LigerSiLUMulFunction").apply(gate, up)
    return y


def swiglu_backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    """It overwrites what it is given, so copies of them."""
    grads: tuple[Tensor, ...] = _function("swiglu", "swiglu_backward")(gate.clone(), up.clone(), dy)
    return grads


CALLS: Mapping[str, Callable[..., Any]] = {
    call.__name__: call
    for call in (
        cross_entropy, fused_linear_cross_entropy, group_norm, kl_divergence, layer_norm, layer_norm_backward, rms_norm,
        rms_norm_backward, rope, softmax, swiglu, swiglu_backward,
    )
}  # fmt: skip
"""Task → call."""
