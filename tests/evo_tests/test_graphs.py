"""How graphs call a plan, and whose memory is whose: what needs no GPU to be seen of device timing."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from evo.evaluation.bounded import Bounded
from evo.evaluation.graphs import MAX_ARENA_BYTES, MAX_CALLS, MIN_GRAPH_US, Arena, layout_for
from evo.evaluation.inputs import make_inputs
from evo.evaluation.runner import Execution
from evo.tasks.base import Case, Task, TensorSpec
from evo.tracing.plan import Allocate, Copy, LaunchPlan, Source, Value

CPU = torch.device("cpu")
L2 = 50 << 20


@pytest.mark.parametrize("once_us", [0.5, 3.0, 9.0, 40.0, 149.0, 10_000.0])
@pytest.mark.parametrize("nbytes", [0, 1000, 1 << 20, 40 << 20, 1 << 30, 8 << 30])
def test_a_graph_is_long_enough_for_the_clock_and_its_inputs_are_cold(once_us: float, nbytes: int) -> None:
    layout = layout_for(once_us, nbytes, L2, once_per_set=False)
    assert layout.calls * once_us >= MIN_GRAPH_US or layout.calls >= MAX_CALLS
    assert layout.rounds == 1 or layout.sets * nbytes >= 2 * L2, "a set comes back before it has left the cache"
    assert layout.sets == 1 or layout.sets * nbytes <= MAX_ARENA_BYTES + nbytes


def test_a_long_kernel_is_called_once() -> None:
    assert layout_for(10_000.0, 1 << 20, L2, once_per_set=False).calls == 1


def test_calls_that_change_their_inputs_have_a_set_each() -> None:
    for nbytes in (100, 1 << 20, 1 << 29):
        layout = layout_for(3.0, nbytes, L2, once_per_set=True)
        assert layout.rounds == 1
        assert layout.sets * nbytes <= MAX_ARENA_BYTES


def arena_and_plan() -> tuple[Arena, LaunchPlan]:
    spec = TensorSpec((4, 4), "float32")
    case = Case("one", (spec, spec), 1, 0)
    task = Task("first_of_two", "", "entry", lambda x, y: x, (case,), (), (dataclasses.replace(case, name="small"),), ())
    values = tuple(Value(storage, "float32", (4, 4), (4, 1), 0) for storage in range(4))
    sources = (Source("argument", 0, 0), Source("argument", 1, 1))
    steps = {"prepare": (Allocate(3),), "forward": (Allocate(2), Copy(2, 0)), "backward": ()}
    plan = LaunchPlan("3", "cuda:90", (64,) * 4, values, sources, (), steps, {"value": 2}, (), {})
    return Arena(task, case, 5, CPU, lambda seed: make_inputs(task, case, seed, CPU)), plan


def bound(arena: Arena, plan: LaunchPlan) -> Execution:
    execution = Execution(plan, (), arena.memory(0, plan), CPU, reuses=True)
    execution.supply("parameter", {})
    execution.run("prepare")
    execution.supply("argument", dict(enumerate(arena.inputs(0).arguments)))
    execution.run("forward")
    return execution


def test_two_plans_share_inputs_and_scratch_by_what_they_are_and_nothing_else() -> None:
    arena, plan = arena_and_plan()
    turned = dataclasses.replace(plan, sources=plan.sources[::-1])
    one, other = bound(arena, plan), bound(arena, turned)
    for value in (0, 1, 2):
        assert one.value(value).data_ptr() == other.value(value).data_ptr()
    assert one.value(3).data_ptr() != other.value(3).data_ptr(), "what a plan prepared once must survive the other"
    x, y = arena.inputs(0).arguments
    assert torch.equal(one.value(0), x)
    assert torch.equal(one.value(1), y)


def test_a_graph_reuses_its_buffers_and_sets_have_their_own() -> None:
    arena, plan = arena_and_plan()
    execution = bound(arena, plan)
    before = execution.value(2).data_ptr()
    execution.run("forward")
    assert execution.value(2).data_ptr() == before
    second = Execution(plan, (), arena.memory(1, plan), CPU, reuses=True)
    second.supply("argument", dict(enumerate(arena.inputs(1).arguments)))
    assert second.value(0).data_ptr() != execution.value(0).data_ptr()
    assert not torch.equal(second.value(0), execution.value(0))


def test_a_bounded_cache_drops_what_was_used_longest_ago() -> None:
    cache: Bounded[str] = Bounded(10, len)
    made: list[str] = []

    def get(text: str) -> str:
        return cache.get(text, lambda: made.append(text) or text)

    for text in ("aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb"):
        assert get(text) == text
    assert made == ["aaaa", "bbbb", "cccc", "bbbb"]
    assert cache.held_bytes == 8
    get("x" * 50)
    assert (len(cache), cache.held_bytes) == (1, 50), "the newest is kept whatever its size"
    cache.discard()
    assert (len(cache), cache.held_bytes) == (0, 0)
