"""Where results lie and which get a gradient is as in the reference, on every tier: aliases, nested outputs, trained weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from evo.errors import PlanError
from evo.evaluation.base import WorkItem
from evo.evaluation.form import Forms, reference_places
from evo.evaluation.hosted_host import CpuHost
from evo.evaluation.hosted_sides import HostedWork
from evo.evaluation.interpreter import InterpretedTier
from evo.evaluation.ladder import LadderEvaluator
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.tier import Candidate, Checked
from evo.records import Configuration, Failure, Stage, Status, Variant
from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import Draw
from evo.tracing.plan import LaunchPlan
from evo.tracing.workbench import Job, Prepared, Workbench
from tests.evo_tests import inplace_task, nested_gradients_task, trained_module_task

pytestmark = pytest.mark.slow

BACKWARD = (nested_gradients_task, trained_module_task)

COPY = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < count), mask=at < count)

def entry(x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return RESULT
"""


def copying(reference: Callable[[torch.Tensor], Any]) -> Task:
    case = Case("small", (TensorSpec((3, 40), "float32"),), 960, 0)
    training = dataclasses.replace(case, name="training")
    return Task("copying", "copies of x", "entry", reference, (training,), (), (case,), (COPY.replace("RESULT", "y"),))


def returning(result: str) -> str:
    return COPY.replace("RESULT", result)


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    bench = Workbench("cuda:90", workers=1)
    bench.start()
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def tier(bench: Workbench) -> Iterator[InterpretedTier]:
    tier = InterpretedTier("cuda:90", workbench=bench)
    yield tier
    tier.close()


@pytest.fixture(scope="module")
def host() -> Iterator[CpuHost]:
    host = CpuHost()
    yield host
    host.close()


def traced(bench: Workbench, source: str, task: Task) -> LaunchPlan:
    prepared = bench.prepare([Job(source, task, task.small_cases[0], Configuration(), binaries=False)])[0]
    assert isinstance(prepared, Prepared), prepared
    return prepared.plan


def form(bench: Workbench, source: str, task: Task) -> Failure | None:
    return Forms().failure(task, task.small_cases[0], traced(bench, source, task))


def test_memory_that_a_caller_would_not_expect_to_share_is_refused(bench: Workbench) -> None:
    one = copying(lambda x: x.clone())
    assert form(bench, returning("y"), one) is None
    failure = form(bench, returning("x.view(3, 40)"), one)
    assert failure is not None
    assert (failure.status, failure.stage) == (Status.WRONG_STRUCTURE, Stage.TRACE)
    assert failure.message == "case small: entry: output 0 shares memory with argument 0; the reference returns new memory"
    two = copying(lambda x: (x.clone(), x.clone()))
    assert form(bench, returning("(y, x.clone())"), two) is None
    failure = form(bench, returning("(y, y)"), two)
    assert failure is not None
    assert "output 0 shares memory with output 1" in failure.message


def test_halves_of_one_buffer_are_no_alias(bench: Workbench) -> None:
    halves = copying(lambda x: (x[:1].clone(), x[1:].clone()))
    assert form(bench, returning("(y[:1], y[1:])"), halves) is None
    assert form(bench, returning("(y[:1], y[:2])"), halves) is not None


def test_what_the_reference_shares_may_be_shared(bench: Workbench) -> None:
    view = copying(lambda x: (x.view(-1), x.clone()))
    assert form(bench, returning("(x.view(-1), y)"), view) is None
    assert form(bench, returning("(y.view(-1), x.clone())"), view) is None
    assert form(bench, returning("(x.view(-1), x)"), view) is not None
    assert form(bench, inplace_task.GOOD, inplace_task.TASK) is None
    returned = dataclasses.replace(inplace_task.TASK, reference=lambda x: x.mul_(0.5).add_(1.0))
    assert form(bench, inplace_task.GOOD + "    return x\n", returned) is None


def test_the_ladder_asks_for_it(bench: Workbench, tier: InterpretedTier) -> None:
    task = copying(lambda x: x.clone())
    evaluator = LadderEvaluator({task.name: task}, EvaluationSettings(target="cuda:90", tune_trials=0), tier, bench)
    verdict = evaluator.evaluate(WorkItem(1, Variant(task.name, returning("x")), None), lambda plan, variant: None)
    assert (verdict.status, verdict.stage) == (Status.WRONG_STRUCTURE, Stage.TRACE), verdict
    assert "shares memory with argument 0" in verdict.message


def test_plans_name_the_outputs_and_inputs_that_gradients_flow_between(bench: Workbench) -> None:
    plan = traced(bench, nested_gradients_task.GOOD, nested_gradients_task.TASK)
    assert plan.gradient_places == reference_places(nested_gradients_task.TASK) == (0, 2)
    assert [plan.values[index].shape for index in plan.gradients if index is not None] == [(3, 40)]
    assert LaunchPlan.from_json(plan.to_json()) == plan
    plan = traced(bench, trained_module_task.GOOD, trained_module_task.TASK)
    assert plan.gradient_places == reference_places(trained_module_task.TASK) == (0,)
    assert [plan.values[index].shape for index in plan.gradients if index is not None] == [(40,), (3, 40)]


def test_a_gradient_that_does_not_flow_as_in_the_reference_is_a_matter_of_form(bench: Workbench) -> None:
    for module in BACKWARD:
        assert form(bench, module.GOOD, module.TASK) is None
    failure = form(bench, nested_gradients_task.LOSES_A_GRADIENT, nested_gradients_task.TASK)
    assert failure is not None
    assert failure.status is Status.WRONG_STRUCTURE
    assert "gradients flow back through outputs [0]; in the reference through [0, 2]" in failure.message


@pytest.mark.parametrize(
    ("field", "forged"),
    [
        ("sources", lambda plan: [*plan["sources"], plan["sources"][-1]]),
        ("sources", lambda plan: [{**item, "key": 7} if item["kind"] == "gradient" else item for item in plan["sources"]]),
        ("sources", lambda plan: [{**item, "key": "a"} if item["kind"] == "gradient" else item for item in plan["sources"]]),
        ("sources", lambda plan: [{**item, "key": 1} if item["key"] == 2 else item for item in plan["sources"]]),
    ],
)
def test_forged_gradients_of_a_plan_are_refused(bench: Workbench, field: str, forged: Callable[[Any], Any]) -> None:
    plan = traced(bench, nested_gradients_task.GOOD, nested_gradients_task.TASK).to_json()
    with pytest.raises(PlanError, match="gradient"):
        LaunchPlan.from_json({**plan, field: forged(plan)})


@pytest.mark.parametrize("module", BACKWARD)
def test_gradients_are_judged_under_the_interpreter(bench: Workbench, tier: InterpretedTier, module: Any) -> None:
    def check(source: str) -> Checked | Failure:
        plan = traced(bench, source, module.TASK)
        return tier.check(module.TASK, Candidate(source, module.TASK.small_cases[0], Configuration(), plan, ()), [Draw(3)])

    assert isinstance(check(module.GOOD), Checked), check(module.GOOD)
    wrong = check(module.WRONG_GRADIENT)
    assert isinstance(wrong, Failure)
    assert wrong.status is Status.WRONG_VALUES


@pytest.mark.parametrize("module", BACKWARD)
def test_gradients_are_judged_when_hosted(host: CpuHost, module: Any) -> None:
    def check(source: str) -> Checked | Failure:
        return host.check(HostedWork(str(module.TASK.path), source, {}), module.TASK.small_cases[0].name, [Draw(3)], 30)

    assert isinstance(check(module.GOOD), Checked), check(module.GOOD)
    wrong = check(module.WRONG_GRADIENT)
    assert isinstance(wrong, Failure)
    assert wrong.status is Status.WRONG_VALUES


@pytest.mark.gpu
@pytest.mark.parametrize("module", BACKWARD)
def test_gradients_are_judged_when_replayed(module: Any) -> None:
    from evo.evaluation.checking import Checker
    from evo.evaluation.inputs import make_inputs
    from evo.evaluation.judge import Judge
    from evo.evaluation.oracle import Outputs
    from evo.evaluation.runner import load_plan, set_scratch_allocator
    from evo.evaluation.tolerance import Verdict

    device, judge = torch.device("cuda:0"), Judge("cuda")
    set_scratch_allocator(device)
    with_compiler = Workbench("cuda:{}{}".format(*torch.cuda.get_device_capability()), workers=1)
    try:
        for source, right in ((module.GOOD, True), (module.WRONG_GRADIENT, False)):
            case, draw = module.TASK.training_cases[0], Draw(11)
            prepared = with_compiler.prepare([Job(source, module.TASK, case, Configuration(), binaries=True)])[0]
            assert isinstance(prepared, Prepared), prepared
            kernels = load_plan(prepared.plan, prepared.binaries, device)
            inputs = make_inputs(module.TASK, case, draw.seed, device)
            run = Checker(prepared.plan, kernels, module.TASK, inputs, draw.seed, device).run()
            verdict = judge.judge(module.TASK, case, draw, Outputs(run.structure, run.outputs))
            assert isinstance(verdict, Verdict) is right, verdict
            assert run.memory.violations() == 0
    finally:
        with_compiler.close()
