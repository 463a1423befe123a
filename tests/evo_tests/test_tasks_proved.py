"""Every task's starting kernel on its way through a run without a GPU: traced, compiled for cuda:90, interpreted, judged, estimated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evo.evaluation.base import Effort
from evo.evaluation.draws import choose_draws
from evo.evaluation.interpreter import InterpretedTier
from evo.evaluation.tier import Candidate, Checked
from evo.knobs import read_knobs
from evo.tasks.loading import builtin_tasks, load_task, starting_sources
from evo.tracing.workbench import Job, Prepared, Workbench

QUICK = ("gemm_fp8", "grouped_gemm", "dropout")
"""One of each form that no other has: 8-bit floats, branches, random outputs."""


@pytest.fixture(scope="module")
def tier() -> Iterator[InterpretedTier]:
    bench = Workbench("cuda:90", workers=1, sass=True)
    tier = InterpretedTier("cuda:90", workbench=bench)
    yield tier
    tier.close()
    bench.close()


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in builtin_tasks()]
)
def test_a_starting_kernel_is_traced_compiled_and_passes_the_interpreted_gate(tier: InterpretedTier, name: str) -> None:
    task = load_task(name)
    assert tier.workbench is not None
    for source in starting_sources(task):
        configuration = read_knobs(source).default
        cases = (*task.small_cases, *(task.training_cases[:1] if name in QUICK else task.training_cases))
        jobs = [Job(source, task, case, configuration) for case in cases]
        for case, made in zip(cases, tier.workbench.prepare(jobs), strict=True):
            assert isinstance(made, Prepared), f"{case.name}: {made.message}"
            candidate = Candidate(source, case, configuration, made.plan, made.binaries)
            if case in task.small_cases:
                found = tier.check(task, candidate, choose_draws(task, case, Effort.SEARCH, False))
                assert isinstance(found, Checked), found.message
            else:
                latency = tier.latency_us(task, candidate)
                assert isinstance(latency, float), latency.message
                assert latency > 0
