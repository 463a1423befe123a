"""Candidates prepared side by side: each case keeps its own verdict, equal work is done once, what is urgent overtakes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from evo.records import Configuration, Failure, Status
from evo.tasks.base import Case, Task, TensorSpec
from evo.tracing.workbench import Job, Prepared, Workbench

CASES = tuple(Case(f"{rows}x8", (TensorSpec((rows, 8), "float32"),), bytes=1, flops=0) for rows in (4, 5, 6))
TASK = Task("double", "", "entry", lambda x: x * 2, CASES, (), (Case("small", CASES[0].arguments, 1, 0),), ())
HEAD = """
import os, sys
import torch
import triton
import triton.language as tl

CONFIG = {"B": 64, "unused": 0}
SPACE = {"B": [32, 64], "unused": [0, 1]}

@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)

def launch(x, factor=1):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), CONFIG["B"]) * factor,)](x, y, x.numel(), BLOCK=CONFIG["B"])
    return y

"""
GOOD = HEAD + "def entry(x):\n    return launch(x)\n"


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    bench = Workbench("cuda:90", workers=2)
    bench.start()
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def impatient() -> Iterator[Workbench]:
    bench = Workbench("cuda:90", workers=1, trace_deadline_s=6.0)
    bench.start()
    yield bench
    bench.close()


def jobs(source: str, *, binaries: bool = False, **configuration: int) -> list[Job]:
    return [Job(source, TASK, case, Configuration(configuration), binaries) for case in CASES]


def statuses(results: list[Prepared | Failure]) -> list[Status | None]:
    return [result.status if isinstance(result, Failure) else None for result in results]


def test_a_plan_per_case_in_order(bench: Workbench) -> None:
    prepared = bench.prepare(jobs(GOOD, binaries=True))
    assert [item.plan.values[0].shape for item in prepared if isinstance(item, Prepared)] == [(4, 8), (5, 8), (6, 8)]
    assert all(item.binaries[0].data for item in prepared if isinstance(item, Prepared))


def test_the_verdict_on_one_case_is_not_that_on_another(bench: Workbench) -> None:
    source = HEAD + "def entry(x):\n    if x.shape[0] == 5:\n        raise KeyError('five')\n    return launch(x)\n"
    first, second, third = bench.prepare(jobs(source))
    assert isinstance(second, Failure)
    assert second.message.startswith("case 5x8: KeyError")
    assert isinstance(first, Prepared)
    assert isinstance(third, Prepared)


@pytest.mark.parametrize(("act", "status"), [("os._exit(3)", Status.TRACE_ERROR), ("while True: pass", Status.TIMEOUT)])
def test_a_case_that_ends_its_process_or_hangs_it_hides_no_other(impatient: Workbench, act: str, status: Status) -> None:
    source = HEAD + f"def entry(x):\n    if x.shape[0] == 4:\n        {act}\n    return launch(x)\n"
    assert statuses(impatient.prepare(jobs(source))) == [status, None, None]


def test_a_failure_that_only_a_case_before_it_caused_is_none(bench: Workbench) -> None:
    source = HEAD + (
        "def entry(x):\n    before = os.environ.get('BEFORE', '')\n    os.environ['BEFORE'] = str(x.shape[0])\n"
        "    if before not in ('', str(x.shape[0])):\n        raise RuntimeError('what is this?')\n    return launch(x)\n"
    )
    assert statuses(bench.prepare(jobs(source))) == [None, None, None]


def test_what_a_module_keeps_of_a_case_for_itself_is_allowed(bench: Workbench) -> None:
    source = HEAD + (
        "first = []\ndef entry(x):\n    if not first:\n        first.append(x.shape[0])\n    return launch(x, factor=first[0])\n"
    )
    assert statuses(bench.prepare(jobs(source))) == [None, None, None]


def test_what_one_case_leaves_for_the_next_outside_of_the_module_shows(bench: Workbench) -> None:
    source = HEAD + (
        "def entry(x):\n    seen = sys.modules.setdefault('seen', [])\n    if x.shape[0] not in seen:\n        seen.append(x.shape[0])\n"
        "    return launch(x, 1 + seen.index(x.shape[0]))\n"
    )
    found = bench.prepare(jobs(source))
    assert statuses(found) == [Status.NONDETERMINISTIC, None, Status.NONDETERMINISTIC]  # the middle one is second either way


def test_equal_kernels_are_compiled_once(bench: Workbench) -> None:
    one, other = bench.prepare([jobs(GOOD, binaries=True, unused=unused)[0] for unused in (0, 1)])
    assert isinstance(one, Prepared)
    assert isinstance(other, Prepared)
    assert one.plan is not other.plan
    assert one.binaries[0] is other.binaries[0]
    again = bench.prepare(jobs(GOOD, binaries=True, unused=0))[0]
    assert isinstance(again, Prepared)
    assert again.plan is one.plan


def test_what_is_urgent_overtakes_and_what_is_cancelled_is_left(bench: Workbench) -> None:
    later = bench.submit([job for number in range(12) for job in jobs(f"{GOOD}# {number}\n")], priority=5)
    assert isinstance(bench.prepare(jobs(GOOD + "# now\n"), priority=0)[0], Prepared)
    assert not later[-1].done()
    cancelled = [future.cancel() for future in later]
    assert cancelled[-1]
    kept = later[0].result() if not cancelled[0] else None
    assert kept is None or isinstance(kept, Prepared)
    assert isinstance(bench.prepare(jobs(f"{GOOD}# 11\n"))[0], Prepared)  # cancelled, not lost


def test_results_come_as_they_are_done_and_the_rest_may_be_left(bench: Workbench) -> None:
    bad = Job("def entry(x:\n", TASK, TASK.small_cases[0], Configuration(), True)
    everything = [*jobs(GOOD, binaries=True, B=32), bad]
    failed = {job.case.name: isinstance(result, Failure) for job, result in bench.prepare_each(everything)}
    assert failed == {"4x8": False, "5x8": False, "6x8": False, "small": True}
    results = bench.prepare_each(everything)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(bench.prepare(everything)) == 4


def test_closing_ends_who_waits() -> None:
    bench = Workbench("cuda:90", workers=1)
    futures = bench.submit(jobs(GOOD))
    bench.close()
    bench.close()
    with pytest.raises(CancelledError):
        futures[0].result(timeout=60)
    with pytest.raises(RuntimeError, match="closed"):
        bench.prepare(jobs(GOOD))


def test_a_plan_that_comes_as_the_workbench_closes_is_cancelled_too() -> None:
    """Its kernels cannot be asked for any more, which is no fault that an asker should hear of."""
    bench = Workbench("cuda:90", workers=1)
    try:
        assert isinstance(bench.prepare(jobs(GOOD)[:1])[0], Prepared)
        bench._binaries.close()  # the moment in the middle of `close`
        (future,) = bench.submit(jobs(GOOD, binaries=True)[:1])
        with pytest.raises(CancelledError):
            future.result(timeout=60)
    finally:
        bench.close()
