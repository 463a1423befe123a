"""What makes replayed latencies honest, on a real GPU: inputs that are cold, and timed calls that compute what checked ones do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import triton
import triton.language as tl

from evo.evaluation.graphs import Stopwatch, event
from evo.evaluation.replay import ReplayTier
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.tier import Candidate
from evo.records import Configuration, Failure
from evo.tracing.workbench import Job, Prepared, Workbench
from tests.evo_tests import ladder_task as modules

pytestmark = pytest.mark.gpu
HOPS = 400
STRIDE = 10_007
"""Elements; each hop needs another cache line, and the ring is longer than all hops together."""


@pytest.fixture(scope="module")
def tier() -> Iterator[ReplayTier]:
    """In new processes: nothing has been poisoned in their memory yet."""
    tier = ReplayTier(EvaluationSettings(run_deadline_s=30))
    tier.fresh()
    yield tier
    tier.close()


@pytest.fixture(scope="module")
def bench(tier: ReplayTier) -> Iterator[Workbench]:
    bench = Workbench(tier.capability, workers=2)
    yield bench
    bench.close()


TELLS_A_CHECK = modules.GOOD.replace(
    "    tl.store(y_ptr + row,",
    "    behind = tl.load(x_ptr + tl.num_programs(0) * columns)\n"
    "    found = tl.where(behind != behind, 1.0, 0.0)\n"
    "    tl.store(y_ptr + row,",
).replace("tl.sum(total, axis=0) * 2)", "tl.sum(total, axis=0) * 2 + found)")
"""Adds one where its input ends in a guard band, which is made of NaN, as in the first of a check's runs."""


def test_a_timed_call_that_computes_something_else_than_a_checked_one_is_noticed(tier: ReplayTier, bench: Workbench) -> None:
    """The gate would notice that it reads beyond its buffer; here nothing but the look at timed outputs can."""
    case, configuration = modules.TASK.training_cases[0], Configuration({"BLOCK": 256, "num_warps": 4})

    def candidate(source: str) -> Candidate:
        (prepared,) = bench.prepare([Job(source, modules.TASK, case, configuration)])
        assert isinstance(prepared, Prepared), prepared
        return Candidate(source, case, configuration, prepared.plan, prepared.binaries)

    good = candidate(modules.GOOD)
    verdict = tier.compare_all(modules.TASK, [(candidate(TELLS_A_CHECK), good)], pairs=8, placement=0)
    assert isinstance(verdict, Failure), verdict
    assert verdict.signature == "wrong_values:timed call"
    assert isinstance(tier.compare_all(modules.TASK, [(good, good)], pairs=8, placement=0), list)


@triton.jit
def follow(next_ptr, found_ptr, hops):  # type: ignore[no-untyped-def]
    at = tl.load(next_ptr)
    for _ in range(hops):
        at = tl.load(next_ptr + at)
    tl.store(found_ptr, at)


def test_a_replay_finds_its_inputs_outside_of_the_cache() -> None:
    """Each hop waits for the one before, so latencies of memory are all there is; without the scrub, all hops would hit the cache."""
    size = 1 << 22
    ring = (torch.arange(size, dtype=torch.int64, device="cuda") + STRIDE).remainder(size).to(torch.int32)
    found = torch.zeros(1, dtype=torch.int32, device="cuda")
    follow[(1,)](ring, found, HOPS)
    assert int(found.item()) == (HOPS + 1) * STRIDE % size
    stopwatch = Stopwatch(torch.device("cuda:0"), torch.cuda.get_device_properties(0).L2_cache_size)
    graph = stopwatch.capture(lambda: follow[(1,)](ring, found, HOPS))
    cold_us = min(stopwatch.replay_us(graph) for _ in range(7))
    warm_us = min(_again_us(graph) for _ in range(7)) - stopwatch.empty_us
    assert cold_us > 1.4 * warm_us, f"{cold_us:.1f} µs after the cache was overwritten, {warm_us:.1f} µs after a replay"


def _again_us(graph: torch.cuda.CUDAGraph) -> float:
    start, end = event(), event()
    graph.replay()
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
