"""Where evaluators are started, which of them are slow, and that the fault table is that of the tests: without a cluster."""

from __future__ import annotations

import dataclasses

from evo.cluster.holdings import FIRST_PATIENCE_S, LEAST_PATIENCE_S, PATIENCE, Holdings
from evo.cluster.nodes import Node
from evo.cluster.places import MAX_STRIKES, REST_S, Place, Places
from evo.evaluation.base import Effort, WorkItem
from evo.evaluation.building import compile_workers
from evo.evaluation.settings import EvaluationSettings
from evo.records import Variant
from evo.search.leases import Lease
from tests.evo_tests import fault_table

HEAD = Node("h", "head", cpus=4, gpus=0, here=True)
BIG = Node("b", "big", cpus=8, gpus=2)
SMALL = Node("s", "small", cpus=2, gpus=1)


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def lease(token: str, number: int) -> Lease:
    return Lease(token, WorkItem(number, Variant("t", f"x = {number}"), None, Effort.SEARCH), "t")


def count(places: tuple[Place, ...], node: Node) -> int:
    return sum(place.node_id == node.node_id for place in places)


def test_each_gpu_gets_an_evaluator_and_without_gpus_each_core_but_one_of_the_head() -> None:
    nodes = [HEAD, BIG, SMALL]
    assert [count(Places(gpu=True, wanted=None).free(nodes, ()), node) for node in nodes] == [0, 2, 1]
    assert [count(Places(gpu=False, wanted=None).free(nodes, ()), node) for node in nodes] == [3, 8, 2]
    alone = Node("h", "head", cpus=1, gpus=0, here=True)
    assert count(Places(gpu=False, wanted=None).free([alone], ()), alone) == 1
    assert count(Places(gpu=False, wanted=None).free([alone, SMALL], ()), alone) == 0, "the engine needs a core"


def test_evaluators_of_a_node_share_its_cores() -> None:
    eight, bare = Node("e", "eight", cpus=128, gpus=8), Node("n", "bare", cpus=0, gpus=1)
    assert [Places(gpu=True, wanted=None).cores(node) for node in (eight, SMALL, bare)] == [16, 2, None]
    assert Places(gpu=True, wanted=2).cores(eight) == 64
    settings = EvaluationSettings(cores=16)
    assert compile_workers(settings) == 14
    assert [compile_workers(dataclasses.replace(settings, cores=cores)) for cores in (8, 2, 1)] == [6, 1, 1]


def test_a_given_number_is_spread_and_filled_up_when_nodes_leave() -> None:
    places = Places(gpu=False, wanted=4)
    first = places.free([HEAD, BIG, SMALL], ())
    assert [count(first, node) for node in (HEAD, BIG, SMALL)] == [2, 1, 1]
    left = [place for place in first if place.node_id != "b"]
    assert places.free([HEAD, SMALL], first) == ()
    assert len(places.free([HEAD, SMALL], left)) == 1


def test_nothing_is_started_on_a_node_that_leaves() -> None:
    leaving = Node("b", "big", cpus=8, gpus=2, leaving=True)
    assert count(Places(gpu=True, wanted=None).free([leaving, SMALL], ()), leaving) == 0


def test_a_place_rests_after_failures_in_a_row_and_gets_one_more_chance() -> None:
    clock = Clock()
    places, place = Places(gpu=True, wanted=None, clock=clock), Place("s", 0)
    for _ in range(MAX_STRIKES - 1):
        places.failed(place, delivered=0)
    places.failed(place, delivered=3)
    assert places.free([SMALL], ()) == (place,), "it worked in between"
    for _ in range(MAX_STRIKES - 1):
        places.failed(place, delivered=0)
    assert places.hopeless([SMALL])
    assert not places.hopeless([SMALL, BIG])
    assert not places.hopeless([HEAD]), "a cluster without a GPU may get one"
    clock.now += REST_S
    assert places.free([SMALL], ()) == (place,)
    places.failed(place, delivered=0)
    assert places.hopeless([SMALL]), "one more chance, not five"


def test_work_is_slow_when_it_takes_far_longer_than_what_came_back_lately() -> None:
    clock = Clock()
    holdings = Holdings(clock)
    holdings.give("slow", [lease("1", 1), lease("2", 2)])
    clock.now = FIRST_PATIENCE_S - 1
    assert holdings.slow("idle") == (), "nobody knows yet how long one takes"
    holdings.give("quick", [lease("3", 3)])
    clock.now += 5
    holdings.done("quick", "3")
    assert holdings.slow("idle") == ("1", "2")
    assert holdings.slow("slow") == (), "its own"
    holdings.give("idle", [lease("4", 1)])
    assert holdings.slow("another") == ("2",), "two do the first one"
    holdings.give("quick", [lease("5", 5)])
    clock.now += 20
    holdings.done("quick", "5")
    holdings.give("quick", [lease("6", 6)])
    clock.now += max(LEAST_PATIENCE_S, PATIENCE * 20) - 1
    assert "6" not in holdings.slow("another"), "one came back after 20 s"
    clock.now += 2
    assert "6" in holdings.slow("another")


def test_who_is_lost_holds_nothing_and_what_it_held_comes_in_order() -> None:
    holdings = Holdings(Clock())
    holdings.give("a", [lease("1", 1), lease("2", 2)])
    assert [item.token for item in holdings.take("a")] == ["1", "2"]
    assert holdings.of("a") == holdings.take("a") == ()


def test_the_fault_table_is_that_of_the_tests() -> None:
    page = fault_table.PAGE.read_text(encoding="utf-8")
    assert fault_table.updated(page) == page, "run: python -m tests.evo_tests.fault_table --write"
    assert len({fault.broken for fault in fault_table.faults()}) == len(list(fault_table.faults())) >= 15
