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

def labels(high, *shape):
    return torch.randint(0, high, shape, device="cuda")

result_gold = [{calls}]
"""
CALLS: Mapping[str, str] = {
    "attn_res": "differentiated(LigerAttnResFunction, drawn(3, 4, 5, 16), drawn(16), drawn(16), 1e-6)",
    "cross_entropy": "differentiated(LigerCrossEntropyFunction, drawn(5, 40), labels(40, 5), None)[:1]",
    "dyt": "differentiated(LigerDyTFunction, drawn(5, 48), drawn(1), drawn(48), drawn(48))",
    "fused_add_rms_norm": (
        'differentiated(LigerFusedAddRMSNormFunction, drawn(5, 48), drawn(5, 48), drawn(48), 1e-6, 0.0, "llama", False)'
    ),
    "fused_linear_cross_entropy": "differentiated(LigerFusedLinearCrossEntropyFunction, drawn(5, 24), drawn(40, 24), labels(40, 5))",
    "fused_linear_jsd": "differentiated(LigerFusedLinearJSDFunction, drawn(5, 12), drawn(40, 12), drawn(5, 24), drawn(40, 24))",
    "fused_neighborhood_attention": (
        "differentiated(LigerFusedNeighborhoodAttentionFunction, drawn(1, 2, 12, 16), drawn(1, 2, 12, 16), drawn(1, 2, 12, 16), 3)"
    ),
    "geglu": "differentiated(LigerGELUMulFunction, drawn(5, 48), drawn(5, 48))",
    "group_norm": "differentiated(LigerGroupNormFunction, drawn(2, 4, 24), drawn(4), drawn(4), 4, 2, 1e-5)",
    "jsd": "differentiated(LigerJSDFunction, drawn(4, 40).log_softmax(-1), drawn(4, 40).log_softmax(-1).detach())",
    "kl_div": "differentiated(LigerKLDivLossFunction, drawn(4, 40).log_softmax(-1), drawn(4, 40).softmax(-1).requires_grad_(False))",
    "layer_norm": "differentiated(LigerLayerNormFunction, drawn(5, 48), drawn(48), drawn(48), 1e-5)",
    "llama4_rope": "LigerLlama4RopeFunction.apply(drawn(1, 5, 4, 16), drawn(1, 5, 2, 16), torch.complex(drawn(5, 8), drawn(5, 8)))",
    "modulated_rms_norm": "differentiated(LigerModulatedRMSNormFunction, drawn(2, 5, 48), drawn(48), drawn(2, 48), drawn(2, 48), 1e-6)",
    "multi_token_attention": "differentiated(LigerMultiTokenAttentionFunction, drawn(1, 2, 12, 12), drawn(2, 2, 3, 3), None, 1, 1)",
    "poly_norm": "differentiated(LigerPolyNormFunction, drawn(5, 48), drawn(3), drawn(1)[0], 1e-6, False)",
    "qwen2vl_mrope": (
        "LigerQwen2VLMRopeFunction.apply(drawn(1, 4, 5, 16), drawn(1, 2, 5, 16), drawn(3, 1, 5, 16), drawn(3, 1, 5, 16), [2, 3, 3])"
    ),
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
