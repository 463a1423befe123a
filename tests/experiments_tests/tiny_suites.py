"""Writes checkouts with one or two problems, of the layouts that public suites have."""

from __future__ import annotations

from pathlib import Path

SEPARATOR = "#" * 146

SCALE = """
import torch
import triton
import triton.language as tl

@triton.jit
def scale_kernel(x, y, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(y + at, value * factor, mask=at < n)

def scale(x, factor=2.0):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), factor, BLOCK=64)
    return y, 64

def scale_(x, out):
    scale_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), 3.0, BLOCK=64)
"""
SCALE_TEST = """
import torch

def test_scale():
    results = {}
    results["test_case_1"] = scale(torch.ones(70, device="cuda"))[0].shape
    results["test_case_2"] = scale(torch.randn(3, 40, device="cuda"), factor=0.5)
    results["test_case_3"] = scale_(torch.randn(33, device="cuda"), torch.zeros(33, device="cuda"))
    return results

result_gold = test_scale()
"""
SCALE_PERF = """
from TritonBench_v1.scale import scale
from performance_utils import Performance_Metrics, do_bench_config
import torch

class performance_metrics(Performance_Metrics):
    def __init__(self, dtype=None, is_backward=False, **kwargs):
        super().__init__("scale", dtype=dtype, is_backward=is_backward, **kwargs)

    def get_input_tensors(self):
        self.input_tensors = [torch.rand(2**power, dtype=torch.float32) for power in range(12, 26, 3)]

    def to_cuda(self, item):
        return item.cuda()

    def call_op(self, item):
        return scale(item)
"""
SQUARED = """
import torch

def squared_relu(x, *, out=None):
    result = torch.relu(x) ** 2
    if out is not None:
        out.copy_(result)
        return out
    return result
"""
SQUARED_TEST = """
import torch

def test_squared_relu():
    results = {}
    results["test_case_1"] = squared_relu(torch.randn(5, 9, device="cuda"))
    results["test_case_2"] = squared_relu(torch.randn(4, device="cuda"), out=torch.empty(4, device="cuda"))
    return results

test_results = test_squared_relu()
"""
PYTEST_TAIL = """
import pytest
from geak_eval.perf.ROCm.performance_utils_pytest import PytestBenchmarker, do_bench_config

result_gold = {}

@pytest.mark.parametrize("n", [17, 64])
@pytest.mark.parametrize("factor", [2.0])
def test_scale(n, factor, request):
    x = torch.randn(n, device="cuda")
    y = torch.zeros(n, device="cuda")
    scale_kernel[(triton.cdiv(n, 64),)](x, y, n, factor, BLOCK=64)
    result_gold[request.node.name] = y
    assert torch.allclose(y, x * factor)

@pytest.mark.parametrize("n", [1 << 14])
def test_performance(n, request):
    x, y = torch.randn(n, device="cuda"), torch.zeros(n, device="cuda")
    PytestBenchmarker(lambda: scale_kernel[(triton.cdiv(n, 64),)](x, y, n, 2.0, BLOCK=64), "scale").run_benchmark({})

def test_save_results():
    raise RuntimeError("nobody saves")
"""
LINEAR = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("shift", torch.arange(width).float())

    def forward(self, x):
        return torch.relu(self.norm(x)) + self.shift

batch_size = 4096
width, depth = 512, 3

def get_inputs():
    return [torch.rand(batch_size, width)]

def get_init_inputs():
    return [width]
"""


UNMASKED = """
import torch
import triton
import triton.language as tl

@triton.jit
def double_kernel(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at))

def double(norm, x):
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 16),)](x * 1 + norm.eps, y, BLOCK=16)
    return y
"""
UNMASKED_TEST = """
import torch

for size in (3, 16, 32, 64):
    double(torch.nn.RMSNorm(4, eps=0.5), torch.randn(size, device="cuda"))
"""
"""Of four sizes, one is no multiple of the kernel's block, which it does not mask."""

OWN_INPUTS = (
    f"{UNMASKED}\ndef drawn(size):\n    return double(type('Norm', (), {{'eps': 0.5}}), torch.randn(size, device='cuda'))\n"
)


def write(path: Path, text: str) -> None:
    """A file, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def tritonbench(root: Path) -> Path:
    """A checkout of TritonBench: one problem of G, with a script that measures it, a file of another layout, and one problem of T."""
    write(root / "data/TritonBench_G_v1/scale.py", f"{SCALE}\n{SEPARATOR}\n{SCALE_TEST}")
    write(root / "data/TritonBench_G_v1/other.py", SCALE)
    write(root / "data/TritonBench_G_v1.json", '[{"file": "scale.py", "simp_instru": "Scale by a factor."}]')
    write(root / "performance_metrics/perf_G/golden_metrics/scale_perf.py", SCALE_PERF)
    write(root / "data/TritonBench_T_v1/squared_relu.py", f"{SQUARED}\n{SEPARATOR}\n{SQUARED_TEST}")
    return root


def more_of_tritonbench(root: Path) -> Path:
    """A checkout with two problems of G that need a closer look: one touches memory beyond its tensors, one draws its inputs itself."""
    write(root / "data/TritonBench_G_v1/unmasked.py", f"{UNMASKED}\n{SEPARATOR}\n{UNMASKED_TEST}")
    write(root / "data/TritonBench_G_v1/own_inputs.py", f"{OWN_INPUTS}\n{SEPARATOR}\nprint(drawn(16))\n")
    return root


def rocm(root: Path) -> Path:
    """A checkout of GEAK's evaluator with one kernel for pytest."""
    write(root / "geak_eval/data/ROCm/data/ROCm_v1/test_scale.py", f"{SCALE}\n{SEPARATOR}\n{PYTEST_TAIL}")
    return root


def kernelbench(root: Path) -> Path:
    """A checkout of KernelBench with one problem."""
    write(root / "KernelBench/level2/7_Norm_ReLU_Shift.py", LINEAR)
    return root


FAILING_TASK = """
from evo.tasks.base import Case, Task, TensorSpec

def reference(x):
    return x * (1 // (x.dim() - 1))

CASES = tuple(Case(f"{n}", (TensorSpec((n,), "float32"),), bytes=8 * n, flops=n) for n in (3, 5, 7))
TASK = Task(name="failing", description="", entry="entry", reference=reference, training_cases=CASES[:1], held_out_cases=CASES[1:2],
            small_cases=CASES[2:], starting_kernels=())
"""
"""A task whose reference divides by zero."""
