"""Wheels and checkouts besides TritonBench-G, Liger and FlagGems, whose kernels have forms that those lack, and calls on small inputs.

All lie side by side in one folder, each unpacked under its name here:

    pip download --no-deps flashnn==0.1.1 -d . && unzip flashnn-*.whl -d flashnn
    git clone https://github.com/adityakotha03/tritonLLM tritonllm
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROJECTS = "TRITON_EVOLVE_PROJECTS"
"""Environment variable that names the folder."""


@dataclass(frozen=True)
class Project:
    """A wheel or a checkout.

    Attributes:
        origin: What was looked at, and where it is from.
        root: Folder of its modules, below the folder of its name.
        calls: Module → the calls.
        imported: Its modules import each other.
        bare: Packages whose own `__init__` is left out, for it looks for a GPU or for compiled parts.
    """

    origin: str
    root: str
    calls: Mapping[str, str]
    imported: bool = False
    bare: tuple[str, ...] = ()


DRIVER = """
import torch

def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda").to(dtype)

def spread(*shape):
    return drawn(*shape).abs().softmax(-1)

def whole(*shape):
    return torch.randint(-8, 8, shape, device="cuda", dtype=torch.int8)

def differentiated(function, *arguments):
    tensors = [item.requires_grad_() for item in arguments if isinstance(item, torch.Tensor) and item.is_floating_point()]
    made = function(*arguments)
    return [made.detach().clone(), *torch.autograd.grad((made * torch.cos(made.detach())).sum(), tensors)]

def prepared(module):
    for part in module.modules():
        getattr(part, "prepare", int)()
    return module.eval()

half = torch.float16
result_gold = [{calls}]
"""
PROJECTS_KNOWN: Mapping[str, Project] = {
    "flashlib": Project(
        "flashlib 0.4.0, PyPI",
        "flashlib",
        {
            "linalg/ab_gemm/triton/ab_gemm": "ab_gemm(drawn(24, 70).t(), drawn(36, 70).t())",
            "linalg/cov_gemm/triton/cov_gemm": "cov_gemm(drawn(24, 70).t())",
            "linalg/gemm/triton/tall_skinny": "triton_ab_gemm(drawn(24, 70).t(), drawn(36, 70).t()), triton_gram_gemm(drawn(24, 70).t())",
            "linalg/gram_gemm/triton/gram_gemm": "gram_gemm(drawn(24, 70).t())",
            "primitives/linear_regression/triton/fused_kernels": "cast_and_xty(drawn(300, 40), drawn(300))",
            "primitives/pca/triton/fused_kernels": "triton_cov_gemm_fused(drawn(24, 70).t(), 0.5).triu()",
        },
        imported=True,
    ),
    "flashnn": Project(
        "flashnn 0.1.1, PyPI",
        "flashnn",
        {
            "triton_kernels/layer_norm": "triton_layer_norm_forward(drawn(3, 150), drawn(150), drawn(150), 1e-5)",
            "triton_kernels/layer_norm_dquant": "triton_layer_norm_dquant_forward(drawn(3, 150), drawn(150), drawn(150), 1e-5)",
        },
        imported=True,
    ),
    "llmkernel": Project(
        "Alisehen/LLMKernel at d078a38, GitHub",
        "results",
        {
            "level1/33_BatchNorm/code/kernel_20251212_103158": "prepared(ModelNew(3))(drawn(2, 3, 5, 6))",
            "level1/34_InstanceNorm/code/kernel_20251212_110921": "prepared(ModelNew(3))(drawn(2, 3, 9, 7))",
            "level1/35_GroupNorm_/code/kernel_20251212_120844": "prepared(ModelNew(4, 2))(drawn(2, 4, 9, 7))",
            "level2/11_ConvTranspose2d_BatchNorm_Tanh_MaxPool_GroupNorm/code/kernel_20251215_035601": (
                "prepared(ModelNew(4, 4, 3, 1, 1, 2, 2))(drawn(2, 4, 6, 6))"
            ),
            "level2/23_Conv3d_GroupNorm_Mean/code/kernel_20251215_073556": "prepared(ModelNew(2, 4, 3, 2))(drawn(2, 2, 5, 6, 6))",
            "level2/30_Gemm_GroupNorm_Hardtanh/code/kernel_20251215_074042": "prepared(ModelNew(24, 20, 4, -2.0, 2.0))(drawn(6, 24))",
            "level2/46_Conv2d_Subtract_Tanh_Subtract_AvgPool/code/kernel_20251215_054611": (
                "prepared(ModelNew(2, 4, 3, 0.5, 0.2, 2))(drawn(1, 2, 8, 8))"
            ),
            "level2/83_Conv3d_GroupNorm_Min_Clamp_Dropout/code/kernel_20251215_043911": (
                "prepared(ModelNew(2, 4, 3, 2, 0.0, 1.0, 0.2))(drawn(1, 2, 5, 6, 6))"
            ),
            "level2/96_ConvTranspose3d_Multiply_Max_GlobalAvgPool_Clamp/code/kernel_20251214_194054": (
                "prepared(ModelNew(2, 4, 3, 2, 1, 0.5, 2))(drawn(1, 2, 4, 4, 4))"
            ),
            "level3/30_SwinTransformerV2/code/kernel_20251216_061058": (
                "prepared(WindowAttentionTriton(16, (2, 2), 2))(drawn(1, 4, 16))"
            ),
        },
    ),
    "einops": Project("einops 0.8.2, PyPI", "einops", {}, imported=True),  # for mamba
    "mamba": Project(
        "state-spaces/mamba at e9594ce, GitHub",
        "mamba_ssm/ops/triton",
        {
            "ssd_bmm": "_bmm_chunk_fwd(drawn(1, 20, 2, 16), drawn(1, 20, 2, 16), 8)",
            "ssd_chunk_scan": (
                "_chunk_scan_fwd(drawn(1, 3, 2, 8, 8), drawn(1, 24, 4, 8), spread(1, 4, 3, 8), -spread(1, 4, 3, 8).cumsum(-1),"
                " drawn(1, 24, 2, 16), drawn(1, 3, 4, 8, 16))[0]"
            ),
            "ssd_chunk_state": (
                "_chunk_state_fwd(drawn(1, 24, 2, 16), drawn(1, 24, 4, 8), spread(1, 4, 3, 8), -spread(1, 4, 3, 8).cumsum(-1))"
            ),
            "ssd_state_passing": (
                "_state_passing_fwd(drawn(1, 3, 2, 16), -spread(1, 2, 3)),"
                " _state_passing_fwd(drawn(1, 3, 2, 16), -spread(1, 2, 3), drawn(1, 2, 16))"
            ),
        },
        imported=True,
        bare=("mamba_ssm",),
    ),
    "torchao": Project(
        "torchao 0.18.0, PyPI",
        "torchao/prototype/quantized_training",
        {"int8_mm": "scaled_int8_mm_cuda(whole(17, 40), whole(40, 24), spread(17), spread(24))"},
    ),
    "torchnorm": Project(
        "torchnorm 0.1.2, PyPI",
        "torchnorm",
        {
            "_triton": (
                "differentiated(fused_rms_norm, drawn(3, 37), drawn(37), 1e-5),"
                " differentiated(fused_layer_norm, drawn(3, 37), drawn(37), drawn(37), 1e-5)"
            ),
        },
    ),
    "tritonbench_operators": Project(
        "meta-pytorch/tritonbench at db2155c, GitHub",
        "tritonbench/operators",
        {"layer_norm/tutorial": "LayerNorm.apply(drawn(3, 150), (150,), drawn(150), drawn(150), 1e-5)"},
    ),
    "tritonllm": Project(
        "adityakotha03/tritonLLM at 0e70fe5, GitHub",
        "output",
        {
            "search/openai-gpt-5/40_LayerNorm": "prepared(ModelNew((3, 50)))(drawn(4, 3, 50))",
            "zeroshot/gemini-2.5-pro/40_LayerNorm": "prepared(ModelNew((3, 50)))(drawn(4, 3, 50))",
            "zeroshot/gpt-5/40_LayerNorm": "prepared(ModelNew((3, 50)))(drawn(4, 3, 50))",
            "zeroshot/qwen3_30b/level1/6_Matmul_with_large_K_dimension_": (
                "prepared(ModelNew())(drawn(24, 17, dtype=torch.bfloat16).t(), drawn(36, 24, dtype=torch.bfloat16).t())"
            ),
            "zeroshot/qwen3_30b/level1/9_Tall_skinny_matrix_multiplication_": "prepared(ModelNew())(drawn(24, 17).t(), drawn(36, 24).t())",
        },
    ),
}


def project_paths() -> list[str]:
    """Folders from which modules of these projects import each other; none where the environment names no folder."""
    folder = os.environ.get(PROJECTS, "")
    return [str(Path(folder, name)) for name, project in PROJECTS_KNOWN.items() if folder and project.imported]


def importable() -> None:
    """Makes modules of these projects importable in this process; does nothing where the environment names no folder."""
    folder = os.environ.get(PROJECTS, "")
    for name, project in PROJECTS_KNOWN.items() if folder else ():
        for bare in project.bare:
            package = types.ModuleType(bare)
            package.__path__ = [str(Path(folder, name, *bare.split(".")))]
            sys.modules[bare] = package


def drivers(project: Project) -> dict[str, str]:
    """Module → code that calls it and leaves its results in `result_gold`."""
    return {name: DRIVER.format(calls=calls) for name, calls in project.calls.items()}
