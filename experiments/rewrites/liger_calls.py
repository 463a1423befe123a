"""How Liger's kernels are called on small inputs, forward and backward; a name is a module of `liger_kernel.ops`."""

from __future__ import annotations

from collections.abc import Mapping

DRIVER = """
import torch

def drawn(*shape):
    return torch.randn(*shape, device="cuda")

def differentiated(function, *arguments):
    tensors = [item.requires_grad_() for item in arguments if isinstance(item, torch.Tensor) and item.is_floating_point()]
    made = function.apply(*arguments)
    made = [item for item in (made if isinstance(made, tuple) else (made,)) if isinstance(item, torch.Tensor)]
    outputs = [item for item in made if item.requires_grad]
    kept = [item.detach().clone() for item in made]
    gradients = torch.autograd.grad(sum((item * torch.cos(item.detach())).sum() for item in outputs), tensors, allow_unused=True)
    return [*kept, *(item for item in gradients if item is not None)]

result_gold = [{calls}]
"""
CALLS: Mapping[str, str] = {
    "dyt": "differentiated(LigerDyTFunction, drawn(5, 48), drawn(1), drawn(48), drawn(48))",
    "fused_add_rms_norm": (
        'differentiated(LigerFusedAddRMSNormFunction, drawn(5, 48), drawn(5, 48), drawn(48), 1e-6, 0.0, "llama", False)'
    ),
    "geglu": "differentiated(LigerGELUMulFunction, drawn(5, 48), drawn(5, 48))",
    "group_norm": "differentiated(LigerGroupNormFunction, drawn(2, 4, 24), drawn(4), drawn(4), 4, 2, 1e-5)",
    "kl_div": "differentiated(LigerKLDivLossFunction, drawn(4, 40).log_softmax(-1), drawn(4, 40).softmax(-1).requires_grad_(False))",
    "layer_norm": "differentiated(LigerLayerNormFunction, drawn(5, 48), drawn(48), drawn(48), 1e-5)",
    "poly_norm": "differentiated(LigerPolyNormFunction, drawn(5, 48), drawn(3), drawn(1)[0], 1e-6, False)",
    "relu_squared": "differentiated(LigerReLUSquaredFunction, drawn(5, 48))",
    "rms_norm": 'differentiated(LigerRMSNormFunction, drawn(5, 48), drawn(48), 1e-6, 0.0, "llama", False)',
    "rope": "differentiated(LigerRopeFunction, drawn(1, 4, 5, 16), drawn(1, 2, 5, 16), drawn(1, 5, 16), drawn(1, 5, 16))[:2]",
    "softmax": "differentiated(LigerSoftmaxFunction, drawn(5, 48))",
    "sparsemax": "differentiated(LigerSparsemaxFunction, drawn(5, 48), -1)",
    "swiglu": "differentiated(LigerSiLUMulFunction, drawn(5, 48), drawn(5, 48))",
    "tvd": "differentiated(LigerTVDLossFunction, drawn(4, 40).softmax(-1), drawn(4, 40).softmax(-1).detach())",
}
LIGER_CALLS: Mapping[str, str] = {name: DRIVER.format(calls=calls) for name, calls in CALLS.items()}
"""Module → code that calls it and leaves its results in `result_gold`."""
