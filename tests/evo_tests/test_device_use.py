"""What a compiled variant takes of the device, as operators and people are shown it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evo.evaluation.device_use import device_use
from evo.records import CaseResult, Configuration, Failure
from evo.tasks.base import Case, Task
from evo.tasks.loading import load_task, starting_sources
from evo.tracing.compiler import Binary, Compiler
from evo.tracing.plan import LaunchPlan
from evo.tracing.tracer import Tracer

Compiled = tuple[Task, Case, LaunchPlan, tuple[Binary, ...]]


@pytest.fixture(scope="module")
def compiled() -> Iterator[Compiled]:
    task = load_task("softmax")
    case = task.training_cases[0]
    tracer, compiler = Tracer("cuda:90"), Compiler("cuda:90")
    plan = tracer.trace(starting_sources(task)[0], task, case, Configuration({"num_warps": 4}))
    assert isinstance(plan, LaunchPlan)
    binaries = compiler.compile_plan(plan)
    assert not isinstance(binaries, Failure)
    yield task, case, plan, binaries
    tracer.close()
    compiler.close()


def test_a_launch_is_described_as_it_was_compiled(compiled: Compiled) -> None:
    _, case, plan, binaries = compiled
    use = device_use(plan, binaries, case, "cuda:90")
    (kernel,) = use["kernels"]
    assert (kernel.kernel, kernel.num_warps) == ("softmax_kernel", 4)
    assert kernel.programs == case.arguments[0].shape[0]  # type: ignore[union-attr]
    assert 16 <= kernel.registers <= 255
    assert kernel.spill_bytes >= 0
    assert 0 < kernel.occupancy <= 1
    assert use["memory_us"] == pytest.approx(1e6 * case.bytes / 4.8e12)
    assert use["memory_us"] > use["compute_us"] > 0


def test_it_is_kept_with_the_case_and_older_records_are_read_without_it(compiled: Compiled) -> None:
    _, case, plan, binaries = compiled
    result = CaseResult("c", Configuration(), 0.5, 10.0, 10.0, 1.0, 1.0, 1.0, 0, 0, **device_use(plan, binaries, case, "cuda:90"))
    data = result.to_json()
    assert CaseResult.from_json(data) == result
    assert result.roofline_us == result.memory_us
    for key in ("kernels", "memory_us", "compute_us"):
        del data[key]
    older = CaseResult.from_json(data)
    assert (older.kernels, older.roofline_us) == ((), 0.0)


def test_what_was_not_compiled_or_has_no_data_sheet_is_left_out(compiled: Compiled) -> None:
    _, case, plan, binaries = compiled
    assert device_use(plan, (), case, "cuda:90")["kernels"] == ()
    assert device_use(plan, binaries, case, "auto") == {"kernels": (), "memory_us": 0.0, "compute_us": 0.0}
