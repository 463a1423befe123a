"""The launch plan carries eight awkward kernels: traced and compiled without a GPU, replayed bit for bit on one."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from awkward_kernels import FOLDER, TASKS, source_of

from evo.records import Configuration, Failure
from evo.tasks.base import Task, TensorSpec
from evo.tracing.compiler import Compiler
from evo.tracing.plan import Allocate, Fill, Launch, LaunchPlan
from evo.tracing.tracer import Tracer


@pytest.fixture(scope="module")
def tools() -> Iterator[tuple[Tracer, Compiler]]:
    tracer, compiler = Tracer("cuda:90"), Compiler("cuda:90")
    yield tracer, compiler
    tracer.close()
    compiler.close()


def traced(tools: tuple[Tracer, Compiler], name: str, **configuration: Any) -> LaunchPlan:
    task = TASKS[name]
    plan = tools[0].trace(source_of(task), task, task.training_cases[0], Configuration(configuration))
    assert isinstance(plan, LaunchPlan), plan
    return plan


@pytest.mark.parametrize("name", TASKS)
def test_traces_and_compiles_without_a_gpu(tools: tuple[Tracer, Compiler], name: str) -> None:
    plan = traced(tools, name)
    binaries = tools[1].compile_plan(plan)
    assert not isinstance(binaries, Failure), binaries
    assert all(len(binary.data) > 1000 for binary in binaries)
    assert LaunchPlan.from_json(plan.to_json()) == plan
    assert traced(tools, name).plan_hash == plan.plan_hash


def test_in_place_updates_name_the_caller_s_storage(tools: tuple[Tracer, Compiler]) -> None:
    plan = traced(tools, "kv_cache_update")
    assert [type(step) for step in plan.steps["forward"]] == [Launch, Launch]
    assert plan.outputs == {"value": plan.sources[2].value}


def test_zeroing_is_part_of_the_plan(tools: tuple[Tracer, Compiler]) -> None:
    assert [type(step) for step in traced(tools, "atomic_histogram").steps["forward"]] == [Allocate, Fill, Launch]


def test_backward_is_a_phase_with_gradients(tools: tuple[Tracer, Compiler]) -> None:
    plan = traced(tools, "autograd_scale_gelu")
    assert sum(isinstance(step, Launch) for step in plan.steps["backward"]) == 2
    assert len(plan.gradients) == 2
    assert [source.kind for source in plan.sources] == ["argument", "argument", "gradient"]


def test_outputs_keep_names_dtypes_and_scalars(tools: tuple[Tracer, Compiler]) -> None:
    plan = traced(tools, "several_outputs")
    dtypes = {key: plan.values[item["value"]].dtype for key, item in plan.outputs.items() if isinstance(item, dict)}
    assert dtypes == {"half": "bfloat16", "scale": "float32", "arg": "int64", "positive": "bool"}
    assert plan.outputs["rows"] == 77


def test_packing_weights_is_done_once_and_reads_no_input(tools: tuple[Tracer, Compiler]) -> None:
    plan = traced(tools, "packed_linear")
    assert [type(step) for step in plan.steps["prepare"]] == [Allocate, Launch]
    assert [type(step) for step in plan.steps["forward"]] == [Allocate, Launch]


def test_an_autotuned_kernel_is_a_family_of_plans(tools: tuple[Tracer, Compiler]) -> None:
    plan = traced(tools, "autotuned_split_k")
    assert plan.choices == {"matvec": 2}
    other = traced(tools, "autotuned_split_k", **{"autotune:matvec": 1})
    assert other.plan_hash != plan.plan_hash
    assert [launch.grid[1] for launch in (plan.launches[0], other.launches[0])] == [2, 4]


def test_device_descriptors_need_global_scratch(tools: tuple[Tracer, Compiler]) -> None:
    binaries = tools[1].compile_plan(traced(tools, "global_scratch"))
    assert not isinstance(binaries, Failure)
    assert binaries[0].metadata["global_scratch_size"] > 0


@pytest.mark.parametrize("target", [pytest.param("cuda:80", marks=pytest.mark.slow), "cuda:100", "hip:gfx942"])
def test_other_targets(target: str) -> None:
    tracer, compiler = Tracer(target), Compiler(target)
    try:
        plan = traced((tracer, compiler), "atomic_histogram")
        binaries = compiler.compile_plan(plan)
        assert not isinstance(binaries, Failure), binaries
        assert binaries[0].resources.registers > 0
    finally:
        tracer.close()
        compiler.close()


@pytest.mark.gpu
@pytest.mark.parametrize("name", TASKS)
def test_replay_equals_the_usual_launch_bit_for_bit(name: str) -> None:
    from evo.evaluation.runner import Execution, PlainMemory, load_plan, set_scratch_allocator

    target = "cuda:{}{}".format(*torch.cuda.get_device_capability())
    tools = (Tracer(target), Compiler(target))
    device = torch.device("cuda:0")
    task = TASKS[name]
    try:
        plan = traced(tools, name)
        binaries = tools[1].compile_plan(plan)
        assert not isinstance(binaries, Failure), binaries
    finally:
        tools[0].close()
        tools[1].close()
    arguments, parameters = tensors(task, device)
    expected = usual_launch(task, arguments, parameters)
    set_scratch_allocator(device)
    execution = Execution(plan, load_plan(plan, binaries, device), PlainMemory(device), device)
    execution.supply("parameter", parameters)
    execution.run("prepare")
    execution.supply("argument", {i: item for i, item in enumerate(arguments) if isinstance(item, torch.Tensor)})
    execution.run("forward")
    results = leaves(execution.outputs())
    if task.backward:
        execution.supply("gradient", {0: torch.ones_like(results[0])})
        execution.run("backward")
        results += [item for item in execution.gradients() if item is not None]
    results += [execution.value(plan.sources[position].value) for position in task.mutates]
    assert len(results) == len(expected)
    for got, wanted in zip(results, expected, strict=True):
        assert got.dtype == wanted.dtype
        assert got.stride() == wanted.stride()
        assert torch.equal(got, wanted)


def tensors(task: Task, device: torch.device) -> tuple[list[Any], dict[str, torch.Tensor]]:
    generator = torch.Generator(device).manual_seed(7)

    def make(spec: TensorSpec) -> torch.Tensor:
        if spec.distribution == "integers":
            made = torch.randint(int(spec.low), int(spec.high), spec.shape, generator=generator, device=device)
        else:
            made = torch.randn(spec.shape, generator=generator, device=device)
        return made.to(getattr(torch, spec.dtype)).requires_grad_(spec.requires_grad)

    arguments = [make(item) if isinstance(item, TensorSpec) else item for item in task.training_cases[0].arguments]
    return arguments, {key: make(spec) for key, spec in task.parameters.items()}


def usual_launch(task: Task, arguments: list[Any], parameters: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    spec = importlib.util.spec_from_file_location(task.name, FOLDER / f"{task.name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if task.name == "autotuned_split_k":
        module.matvec.fn.configs = module.matvec.configs = module.matvec.configs[:1]
    own = [
        item.detach().clone().requires_grad_(item.requires_grad) if isinstance(item, torch.Tensor) else item for item in arguments
    ]
    call = module.entry
    if task.form == "module":
        call = call(*task.init_arguments)
        call.load_state_dict(parameters, assign=True)
    with torch.set_grad_enabled(task.backward):
        results = leaves(call(*own))
    if task.backward:
        results[0].backward(torch.ones_like(results[0]))
        results = [results[0].detach(), *(item.grad for item in own)]
    return results + [own[position] for position in task.mutates]


def leaves(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        return [leaf for item in result.values() for leaf in leaves(item)]
    return [leaf for item in result for leaf in leaves(item)] if isinstance(result, list | tuple) else []
