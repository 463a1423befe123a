"""bfloat16 in the interpreted tier is what it is on a GPU: rounded to nearest even, multiplied as numbers, subnormals kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from evo.evaluation.interpreter import InterpretedTier
from evo.evaluation.tier import Candidate, Checked
from evo.records import Configuration
from evo.tasks.base import Case, Task, TensorSpec, Tolerance
from evo.tasks.draws import Draw, Variation
from evo.tracing.workbench import Job, Prepared, Workbench

KERNELS = """
import torch, triton, triton.language as tl

@triton.jit
def narrow_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wide = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(y + at, wide.to(tl.bfloat16).to(tl.float32), mask=at < n)

@triton.jit
def square_kernel(x, y, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    a = tl.load(x + at)
    tl.store(y + at, tl.dot(a, a))

def narrow(x):
    y = torch.empty_like(x)
    narrow_kernel[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
    return y

def square(x):
    y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    square_kernel[(1,)](x, y, SIZE=16)
    return y
"""
EXACT = Tolerance(ratio=1.0, floor_epsilons=0.0)


def _narrow(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().to(x.dtype)


def _square(x: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide @ wide


def made(name: str, spec: TensorSpec) -> Task:
    case = Case("case", (spec,), 2 * spec.nbytes, spec.numel)
    reference = {"narrow": _narrow, "square": _square}[name]
    return Task(name, "", name, reference, (case,), (), (dataclasses.replace(case, name="small"),), (KERNELS,), EXACT)


@pytest.fixture(scope="module")
def tier() -> Iterator[InterpretedTier]:
    bench = Workbench("cuda:90", workers=1)
    tier = InterpretedTier("cuda:90", workbench=bench)
    yield tier
    tier.close()
    bench.close()


@pytest.mark.parametrize("variation", [Variation.PLAIN, Variation.LARGE, Variation.TIES, Variation.SIGNED_ZEROS])
@pytest.mark.parametrize("name", ["narrow", "square"])
def test_it_rounds_and_multiplies_as_torch_does(tier: InterpretedTier, name: str, variation: Variation) -> None:
    spec = TensorSpec((1000,), "float32") if name == "narrow" else TensorSpec((16, 16), "bfloat16")
    # In its own dtypes, so that what is rounded to the nearest is told from what is cut off.
    task = dataclasses.replace(made(name, spec), oracle="reference") if name == "narrow" else made(name, spec)
    assert tier.workbench is not None
    (prepared,) = tier.workbench.prepare([Job(KERNELS, task, task.small_cases[0], Configuration(), binaries=False)])
    assert isinstance(prepared, Prepared), prepared.message
    candidate = Candidate(KERNELS, task.small_cases[0], Configuration(), prepared.plan, ())
    found = tier.check(task, candidate, [Draw(5, variation)])
    assert isinstance(found, Checked), found.message
