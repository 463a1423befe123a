"""The interpreted tier on real modules in real sandboxes: honest kernels pass, each kind of wrong one fails for its own reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from evo.evaluation.interpreter import InterpretedTier
from evo.evaluation.tier import Candidate, Checked
from evo.evaluation.transcript import can_transcribe
from evo.knobs import read_knobs
from evo.records import Failure, LatencyKind, Status, TrustLevel
from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import Draw
from evo.tasks.loading import load_task, starting_sources
from evo.tracing.plan import LaunchPlan
from evo.tracing.workbench import Job, Prepared, Workbench

PLAN = LaunchPlan("3", "cuda:90", (64, 64), (), (), (), {"prepare": (), "forward": (), "backward": ()}, [], (), {})

MODULE = """
import torch, triton, triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(y + at, v * 2 + 1, mask=at < n)

def double(x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 16),)](x, y, x.numel(), BLOCK=16)
    return y
"""

CASE = Case("40", (TensorSpec((40,), "float32"),), 320, 80)


def _reference(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


TASK = Task(
    "double", "Twice x plus one.", "double", _reference, (CASE,), (), (dataclasses.replace(CASE, name="small"),), (MODULE,)
)

AS_MODULE = """
class Double(torch.nn.Module):
    def forward(self, x):
        return double(x)
"""
MODULE_TASK = dataclasses.replace(
    TASK, name="double_module", entry="Double", form="module", reference=lambda parameters, x: x * 2 + 1
)
"""Modules with parameters are interpreted as they are, their own Python included."""


@pytest.fixture(scope="module")
def tier(workbench: Workbench) -> Iterator[InterpretedTier]:
    tier = InterpretedTier("cuda:90", workbench=workbench)
    tier.start()
    yield tier
    tier.close()


@pytest.fixture(scope="module")
def workbench() -> Iterator[Workbench]:
    bench = Workbench("cuda:90", workers=1)
    yield bench
    bench.close()


def check(tier: InterpretedTier, source: str, task: Task = TASK, seed: int = 11) -> Checked | Failure:
    case, configuration = task.small_cases[0], read_knobs(source).default
    plan = PLAN
    if can_transcribe(task):
        traced = tier.workbench.prepare([Job(source, task, case, configuration, binaries=False)])[0]
        assert isinstance(traced, Prepared), traced
        plan = traced.plan
    return tier.check(task, Candidate(source, case, configuration, plan, ()), [Draw(seed)])


def failure(tier: InterpretedTier, old: str, new: str, task: Task = TASK) -> Failure:
    assert old in MODULE
    found = check(tier, MODULE.replace(old, new) + AS_MODULE, task)
    assert isinstance(found, Failure), found
    assert "case small" in found.message
    return found


def test_what_it_says_of_itself(tier: InterpretedTier) -> None:
    assert (tier.device, tier.trust, tier.latency_kind) == ("cuda:90 (modelled)", TrustLevel.INTERPRETED, LatencyKind.MODELLED)
    assert (tier.gpu_s, tier.noise_floor(), tier.gates_on_binaries) == (0.0, 0.0, False)
    assert tier.gate_cases(TASK) == TASK.small_cases


@pytest.mark.parametrize("name", ["softmax", "gemm_bias_gelu", "attention", "quantize_rows", "rms_norm", "swiglu"])
def test_starting_kernels_pass(tier: InterpretedTier, name: str) -> None:
    task = load_task(name)
    found = check(tier, starting_sources(task)[0], task)
    assert isinstance(found, Checked), found
    assert found.error_ratio <= 1


def test_equal_seeds_give_equal_verdicts(tier: InterpretedTier) -> None:
    assert check(tier, MODULE) == check(tier, MODULE)


def test_inputs_of_a_public_seed_are_each_tiers_own(tier: InterpretedTier, workbench: Workbench) -> None:
    other = InterpretedTier("cuda:90", workbench=workbench)
    try:
        assert check(other, MODULE) != check(tier, MODULE), "rounding errors of equal inputs would be equal"
    finally:
        other.close()


def test_wrong_values_are_told_by_the_judge(tier: InterpretedTier) -> None:
    assert failure(tier, "v * 2 + 1", "v * 2").status is Status.WRONG_VALUES


def test_elements_nobody_wrote_are_seen(tier: InterpretedTier) -> None:
    found = failure(tier, "mask=at < n)\n\ndef", "mask=at < n - 1)\n\ndef")
    assert (found.status, "got nan" in found.message) == (Status.WRONG_VALUES, True), found.message


def test_reading_past_a_tensor_names_the_tensor_and_the_line(tier: InterpretedTier) -> None:
    found = failure(tier, "tl.load(x + at, mask=at < n, other=0.0)", "tl.load(x + at)")
    assert found.status is Status.RUNTIME_ERROR
    assert "out of bounds: 8 of 16 addresses of a load" in found.message
    assert "nearest, x;" in found.message
    assert "at line 7: v = tl.load(x + at)" in found.message


def test_writing_past_a_tensor_is_stopped(tier: InterpretedTier) -> None:
    found = failure(tier, "v * 2 + 1, mask=at < n", "v * 2 + 1")
    assert found.status is Status.RUNTIME_ERROR
    assert "a store in program (2, 0, 0)" in found.message
    found = failure(tier, "tl.store(y + at, v * 2 + 1, mask=at < n)", "tl.atomic_xchg(y + at, v * 2 + 1)")
    assert "of a atomic in program (2, 0, 0)" in found.message


def test_changing_an_input_is_a_guard_violation(tier: InterpretedTier) -> None:
    found = failure(tier, "    tl.store(y", "    tl.store(x + at, v + 1, mask=at < n)\n    tl.store(y")
    assert found.status is Status.GUARD_VIOLATION
    assert "argument 0" in found.message


def test_wrong_form_is_a_wrong_structure(tier: InterpretedTier) -> None:
    assert failure(tier, "return y", "return (y,)").status is Status.WRONG_STRUCTURE
    assert failure(tier, "return y", "return y.view(4, 10)").status is Status.WRONG_STRUCTURE
    assert failure(tier, "return y", "return 'y'").status is Status.WRONG_STRUCTURE


def test_errors_carry_the_candidates_line(tier: InterpretedTier) -> None:
    found = failure(tier, "y = torch.empty_like(x)", "y = torch.empty_like(missing)", MODULE_TASK)
    assert found.status is Status.RUNTIME_ERROR
    assert "NameError" in found.message
    assert "at line 11" in found.message


def test_a_module_that_cannot_be_told_from_its_python_is_refused(tier: InterpretedTier) -> None:
    hidden = "if True:\n    @triton.jit\n    def factor():\n        return 2\n\ndef double"
    source = MODULE.replace("v * 2 + 1", "v * factor() + 1").replace("def double", hidden)
    found = check(tier, source)
    assert isinstance(found, Failure)
    assert found.status is Status.REJECTED
    assert "factor is not defined at the top level" in found.message


def test_a_crash_and_an_exit_end_only_the_child(tier: InterpretedTier) -> None:
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n    y = torch.empty_like(x)"
    assert failure(tier, "y = torch.empty_like(x)", crash, MODULE_TASK).status is Status.RUNTIME_ERROR
    assert failure(tier, "y = torch.empty_like(x)", "raise SystemExit(0)", MODULE_TASK).status is Status.RUNTIME_ERROR
    assert isinstance(check(tier, MODULE), Checked)


def test_an_endless_loop_is_a_timeout(workbench: Workbench) -> None:
    impatient = InterpretedTier("cuda:90", deadline_s=3.0, workbench=workbench)
    try:
        assert failure(impatient, "y = torch.empty_like(x)", "while True: pass", MODULE_TASK).status is Status.TIMEOUT
    finally:
        impatient.close()


FORGED = """import os
    import evo.evaluation.interpret_child as child
    answer = {"file": "output-0.bin", "dtype": "float32", "shape": [40], "strides": [1]}
    PREPARE
    child._OutputWriter._tensor = lambda writer, tensor: answer
    y = torch.empty_like(x)"""


@pytest.mark.parametrize(
    "prepare",
    [
        "os.symlink('/etc/hostname', 'output-0.bin')",
        "open('other', 'wb').write(bytes(160)); os.symlink('other', 'output-0.bin')",
        "os.mkfifo('output-0.bin')",
        "os.mkdir('output-0.bin')",
        "answer['shape'] = [2**40]",
        "answer['shape'] = [2**39] * 16",
        "answer['strides'] = [-1]",
        "answer['file'] = 'output-/../../etc/hostname'",
        "answer['file'] = 'argument-0.bin'",
        "os.mkdir('output-'); answer['file'] = 'output-/../argument-0.bin'",
        "answer['dtype'] = '__class__'",
        "open('output-0.bin', 'wb').write(b'short')",
        "open('output-0.bin', 'wb').write(bytes(200))",
    ],
)
def test_hostile_answers_are_refused(tier: InterpretedTier, prepare: str) -> None:
    found = check(tier, MODULE.replace("y = torch.empty_like(x)", FORGED.replace("PREPARE", prepare)) + AS_MODULE, MODULE_TASK)
    assert isinstance(found, Failure), found
    assert found.status is Status.RUNTIME_ERROR
    assert "answer is not valid" in found.message


def _increment(x: torch.Tensor) -> None:
    x += 1


IN_PLACE = """
import triton, triton.language as tl

@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

def double(x):
    kernel[(1,)](x, x.numel(), BLOCK=64)
"""


def test_arguments_a_task_mutates_are_outputs(tier: InterpretedTier) -> None:
    task = dataclasses.replace(TASK, name="increment", reference=_increment, mutates=(0,))
    assert isinstance(check(tier, IN_PLACE, task), Checked)
    found = check(tier, IN_PLACE.replace("+ 1, mask", "+ 2, mask"), task)
    assert isinstance(found, Failure)
    assert found.status is Status.WRONG_VALUES


BACKWARD = """
import torch, triton, triton.language as tl

@triton.jit
def scale(x, y, n, by, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * by, mask=at < n)

class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        scale[(1,)](x, y, x.numel(), 3.0, BLOCK=64)
        return y
    @staticmethod
    def backward(ctx, g):
        d = torch.empty_like(g)
        scale[(1,)](g, d, g.numel(), 3.0, BLOCK=64)
        return d

def double(x):
    return Triple.apply(x)
"""


def test_gradients_are_judged(tier: InterpretedTier) -> None:
    case = Case("small", (TensorSpec((40,), "float32", requires_grad=True),), 320, 80)
    task = dataclasses.replace(TASK, name="triple", reference=lambda x: x * 3, backward=True, small_cases=(case,))
    assert isinstance(check(tier, BACKWARD, task), Checked)
    found = check(tier, BACKWARD.replace("g.numel(), 3.0", "g.numel(), 2.0"), task)
    assert isinstance(found, Failure)
    assert found.status is Status.WRONG_VALUES


MODULE_FORM = """
import torch, triton, triton.language as tl

@triton.jit
def kernel(x, w, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * tl.load(w + at, mask=at < n), mask=at < n)

class double(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(size, device="cuda"))
    def forward(self, x):
        assert x.is_cuda and x.device.type == "cuda"
        y = torch.empty_like(x)
        kernel[(1,)](x, self.weight, y, x.numel(), BLOCK=64)
        return y
"""


def test_modules_get_the_tasks_parameters(tier: InterpretedTier) -> None:
    task = dataclasses.replace(
        TASK,
        name="weighted",
        reference=lambda p, x: x * p["weight"],
        form="module",
        init_arguments=(40,),
        parameters={"weight": TensorSpec((40,), "float32")},
    )
    assert isinstance(check(tier, MODULE_FORM, task), Checked)
