"""FlagGems' modules without a GPU: how they are imported, and how their kernels are called on small inputs.

The package looks for a device as it is imported, imports all its modules at once, and keeps binaries in wrappers that know no interpreter.
Here its folders are importable without that, and the wrappers are left out: kernels are launched as written.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import triton
import triton.language as tl

FLAG_GEMS = "TRITON_EVOLVE_FLAG_GEMS"
"""Environment variable that names an unpacked wheel of FlagGems."""
FOLDERS = ("", "ops", "fused")
DRIVER = """
import torch

def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda").to(dtype)

def counted(high, *shape):
    return torch.randint(0, high, shape, device="cuda")

def spread(*shape):
    return drawn(*shape).abs().softmax(-1)

half = torch.float16
result_gold = [{calls}]
"""
CALLS: Mapping[str, str] = {
    "ops/_is_all_true": "_is_all_true(drawn(5, 37) > -9)",
    "ops/_safe_softmax": "_safe_softmax(drawn(5, 37), -1)",
    "ops/absolute": "absolute(drawn(5, 37))",
    "ops/addmm": "addmm(drawn(33), drawn(17, 21), drawn(21, 33))",
    "ops/addmv": "addmv(drawn(17), drawn(17, 21), drawn(21))",
    "ops/addr": "addr(drawn(17, 21), drawn(17), drawn(21))",
    "ops/all": "all(drawn(5, 37) > 0), all_dim(drawn(5, 37) > -2, 1)",
    "ops/amax": "amax(drawn(5, 37)), amax(drawn(5, 37), [1]), amax(drawn(2, 64), [1])",
    "ops/any": "any(drawn(5, 37) > 0), any_dim(drawn(5, 37) > 2, 1)",
    "ops/aminmax": "aminmax(drawn(5, 37)), aminmax(drawn(5, 37), dim=1)",
    "ops/arcsinh": "arcsinh(drawn(5, 37))",
    "ops/avg_pool2d": (
        "avg_pool2d(drawn(1, 2, 9, 9), 3), avg_pool2d_backward(drawn(1, 2, 3, 3), drawn(1, 2, 9, 9), 3, 3, 0, False, True, None)"
    ),
    "ops/batch_norm": (
        "batch_norm(drawn(4, 3, 10), drawn(3), drawn(3), training=True),"
        " batch_norm_backward(drawn(4, 3, 10), drawn(4, 3, 10), drawn(3), save_mean=drawn(3), save_invstd=drawn(3), train=True,"
        " output_mask=[True, True, True])"
    ),
    "ops/bmm": "bmm(drawn(2, 17, 21), drawn(2, 21, 33))",
    "ops/cat": "cat([drawn(5, 37), drawn(5, 37)], 0)",
    "ops/conv2d": "conv2d(drawn(1, 3, 8, 8), drawn(4, 3, 3, 3), drawn(4), padding=1)",
    "ops/count_nonzero": "count_nonzero(drawn(5, 37) > 0), count_nonzero(drawn(5, 37) > 0, 1)",
    "ops/cumsum": "cumsum(drawn(5, 37), 1), cumsum(drawn(37, 5), 0), normed_cumsum(drawn(5, 37).abs(), 1)",
    "ops/diag": "diag(drawn(9)), diag(drawn(9, 9))",
    "ops/dot": "dot(drawn(2000), drawn(2000))",
    "ops/dropout": "dropout_backward(drawn(5, 37), drawn(5, 37) > 0, 1.5)",
    "ops/embedding": "embedding(drawn(11, 37), counted(11, 5)), embedding_backward(drawn(5, 37), counted(11, 5), 11)",
    "ops/eye_m": 'eye_m(9, 7, device="cuda")',
    "ops/fmin": "fmin(drawn(5, 37), drawn(5, 37))",
    "ops/groupnorm": (
        "group_norm(drawn(2, 4, 24), drawn(4), drawn(4), 2, 4, 24, 2),"
        " group_norm_backward(drawn(2, 4, 24), drawn(2, 4, 24), drawn(2, 2), drawn(2, 2), drawn(4), 2, 4, 24, 2, [True, True, True])"
    ),
    "ops/hardsigmoid": "hardsigmoid(drawn(5, 37))",
    "ops/hypot": "hypot(drawn(5, 37), drawn(5, 37))",
    "ops/i0": "i0(drawn(5, 37))",
    "ops/kron": "kron(drawn(3, 5), drawn(4, 6))",
    "ops/layernorm": ("layer_norm(drawn(5, 37), (37,), drawn(37), drawn(37)), layer_norm(drawn(5, 37), (37,))"),
    "ops/log_softmax": "log_softmax(drawn(5, 37), 1)",
    "ops/logit": "logit(spread(5, 37))",
    "ops/margin_ranking_loss": "margin_ranking_loss(drawn(37), drawn(37), drawn(37).sign())",
    "ops/max": "max(drawn(5, 37)), max_dim(drawn(5, 37), 1)",
    "ops/max_pool2d_with_indices": "max_pool2d_with_indices(drawn(1, 2, 9, 9), 3)",
    "ops/mean": "mean(drawn(5, 37)), mean_dim(drawn(5, 37), [1]), mean_dim(drawn(5, 37), [0])",
    "ops/min": "min(drawn(5, 37)), min_dim(drawn(5, 37), 1)",
    "ops/mm": "mm(drawn(17, 21), drawn(21, 33))",
    "ops/mv": "mv(drawn(17, 21), drawn(21))",
    "ops/nll_loss_nd": "nll_loss_nd_forward(drawn(5, 7, 4), counted(7, 5, 4))",
    "ops/nllloss": (
        "nll_loss_forward(drawn(5, 7), counted(7, 5)),"
        " nll_loss_backward(drawn(1)[0], drawn(5, 7), counted(7, 5), total_weight=drawn(1)[0]),"
        " nll_loss2d_forward(drawn(2, 7, 3, 4), counted(7, 2, 3, 4))"
    ),
    "ops/one_hot": "one_hot(counted(7, 5), 7)",
    "ops/per_token_group_quant_fp8": "per_token_group_quant_fp8(drawn(4, 64), 32)[1]",
    "ops/pixel_unshuffle": "pixel_unshuffle(drawn(1, 2, 8, 8), 2)",
    "ops/prelu": "prelu(drawn(5, 37), drawn(1))",
    "ops/prod": "prod(drawn(5, 37)), prod_dim(drawn(5, 37), 1)",
    "ops/relu6": "relu6(drawn(5, 37))",
    "ops/replication_pad1d": "replication_pad1d(drawn(3, 17), (2, 3))",
    "ops/rms_norm": (
        "rms_norm(drawn(5, 37), (37,), drawn(37)), rms_norm_backward(drawn(5, 37), drawn(5, 37), drawn(5).abs(), (37,), drawn(37))"
    ),
    "ops/roll": "roll(drawn(5, 37), 3, 1)",
    "ops/scaled_softmax": (
        "scaled_softmax_forward(drawn(1, 2, 16, 64, dtype=half), 0.5),"
        " scaled_softmax_backward(drawn(1, 2, 16, 64, dtype=half), spread(1, 2, 16, 64).to(half), 0.5)"
    ),
    "ops/select_scatter": "select_scatter(drawn(5, 37), drawn(37), 0, 2)",
    "ops/selu": "selu(drawn(5, 37))",
    "ops/slice_scatter": "slice_scatter(drawn(5, 37), drawn(2, 37), 0, 1, 3)",
    "ops/soft_margin_loss": 'soft_margin_loss(drawn(37), drawn(37).sign()), soft_margin_loss(drawn(37), drawn(37).sign(), "none")',
    "ops/softmax": (
        "softmax(drawn(5, 37), 1), softmax(drawn(37, 5), 0), softmax_backward(drawn(5, 37), spread(5, 37), 1, torch.float32),"
        " softmax_backward(drawn(37, 5), spread(37, 5), 0, torch.float32)"
    ),
    "ops/softshrink": "softshrink(drawn(5, 37))",
    "ops/special_i0e": "special_i0e(drawn(5, 37))",
    "ops/special_i1": "special_i1(drawn(5, 37))",
    "ops/stack": "stack([drawn(5, 37), drawn(5, 37)], 0)",
    "ops/std": "std(drawn(5, 37), 1), std(drawn(5, 37))",
    "ops/sum": "sum(drawn(5, 37)), sum_dim(drawn(5, 37), [1]), sum_dim(drawn(5, 37), [0])",
    "ops/t_copy": "t_copy(drawn(5, 37))",
    "ops/tril": "tril(drawn(9, 37))",
    "ops/triu": "triu(drawn(9, 37))",
    "ops/upsample_nearest1d": "upsample_nearest1d(drawn(1, 2, 9), (17,))",
    "ops/upsample_nearest2d": "upsample_nearest2d(drawn(1, 2, 5, 5), (9, 9))",
    "ops/var": "var(drawn(5, 37), [1]), var(drawn(5, 37))",
    "ops/var_mean": "var_mean(drawn(5, 37), [1]), var_mean(drawn(5, 37))",
    "ops/vdot": "vdot(drawn(2000), drawn(2000))",
    "ops/vector_norm": "vector_norm(drawn(5, 37)), vector_norm(drawn(5, 37), 2, [1]), vector_norm(drawn(5, 37), 3, [1])",
    "ops/vstack": "vstack([drawn(5, 37), drawn(3, 37)])",
    "fused/apply_repetition_penalties": (
        "(lambda x: (apply_repetition_penalties(x, drawn(5, 37) > 0, drawn(5, 37) > 1, spread(5) + 1), x))(drawn(5, 37))"
    ),
    "fused/fused_add_rms_norm": "fused_add_rms_norm(drawn(5, 37), drawn(5, 37), (37,), drawn(37))",
    "fused/geglu": "geglu(drawn(5, 64)), dgeglu(drawn(5, 32), drawn(5, 64))",
    "fused/instance_norm": "instance_norm(drawn(2, 3, 24), drawn(3), drawn(3))",
    "fused/moe_sum": "(lambda y: (moe_sum(drawn(5, 2, 37), y), y))(drawn(5, 37))",
    "fused/reglu": "reglu(drawn(5, 64)), dreglu(drawn(5, 32), drawn(5, 64))",
    "fused/rotary_embedding": "apply_rotary_pos_emb(drawn(1, 5, 2, 16), drawn(1, 5, 1, 16), drawn(5, 8), drawn(5, 8))",
    "fused/rwkv_ka_fusion": "rwkv_ka_fusion(drawn(64), drawn(64), drawn(64), drawn(64), 4, 16)",
    "fused/skip_layernorm": "skip_layer_norm(drawn(5, 37), drawn(5, 37), (37,), drawn(37), drawn(37))",
    "runtime/backend/_ascend/fused/skip_layernorm": (
        "skip_layer_norm(drawn(2, 5000), drawn(2, 5000), (5000,), drawn(5000), drawn(5000))"
    ),
    "fused/swiglu": "swiglu(drawn(5, 64)), dswiglu(drawn(5, 32), drawn(5, 64))",
}
"""Module → the calls."""
FLAG_GEMS_CALLS: Mapping[str, str] = {name: DRIVER.format(calls=calls) for name, calls in CALLS.items()}


def importable() -> None:
    """Makes the modules of a wheel importable in this process; does nothing where the environment names no folder."""
    root = os.environ.get(FLAG_GEMS, "")
    if not root:
        return
    os.environ["GEMS_VENDOR"] = "nvidia"
    for folder in FOLDERS:
        package = types.ModuleType(".".join(filter(None, ("flag_gems", folder))))
        package.__path__ = [str(Path(root, "flag_gems", folder))]
        package.__dict__["device"] = "cuda"
        sys.modules[package.__name__] = package
    plain = types.ModuleType("flag_gems.utils.libentry")
    vars(plain).update(libentry=lambda: _as_written, libtuner=_autotuned)
    sys.modules[plain.__name__] = plain
    tl.dtype.value = property(lambda kind: kind)  # what is a constexpr to the compiler is bare to the interpreter


def _as_written(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return kernel


def _autotuned(configs: Any, key: Any, **_: Any) -> Any:
    return triton.autotune(configs=configs, key=key)
