"""The parts an engine is made of: settings, front, selection, bandit, lineages, leases, migration, restarts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo.evaluation.base import Effort, WorkItem
from evo.records import EventKind, Variant
from evo.search.bandit import Bandit, reward
from evo.search.exhaustion import Exhaustion
from evo.search.front import Front, Point, pareto_front
from evo.search.islands import Island
from evo.search.leases import LeaseBook
from evo.search.randomness import Draw, stream
from evo.search.selection import MapElites, Member, Tournament
from evo.search.settings import Budget, SearchSettings
from evo.search.traps import Lineage

SETTINGS = SearchSettings()


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("islands", 0, "a whole number of at least 1"),
        ("islands", True, "a whole number of at least 1"),
        ("tournament_size", 2.5, "a whole number of at least 1"),
        ("migrants", -1, "a whole number of at least 0"),
        ("crossover_share", 1.5, "a number from 0 to 1"),
        ("bandit_floor", float("nan"), "a number from 0 to 1"),
        ("selection", "roulette", "tournament, map_elites"),
        ("lease_s", 0, "a number of at least 0.001"),
    ],
)
def test_settings_name_key_given_and_allowed(key: str, value: object, allowed: str) -> None:
    with pytest.raises(ValueError) as caught:
        SearchSettings(**{key: value})  # type: ignore[arg-type]
    assert str(caught.value) == f"{key}: given {value!r}; allowed: {allowed}"


def test_budget_names_key_given_and_allowed() -> None:
    with pytest.raises(ValueError, match="evaluations: given 0; allowed: a whole number of at least 1"):
        Budget(evaluations=0)
    with pytest.raises(ValueError, match="dollars: given -1; allowed: a number of at least 0"):
        Budget(dollars=-1)


points = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 4), st.integers(0, 4), st.integers(0, 2)).map(
        lambda v: (float(v[0]), v[1] / 4, v[2], v[3])
    ),
    max_size=25,
).map(lambda values: [Point(str(place), *value) for place, value in enumerate(values)])


@given(points)
def test_the_front_holds_exactly_what_nothing_covers(found: list[Point]) -> None:
    front = pareto_front(found)
    for point in found:
        covering = [other for other in found if other is not point and other.covers(point)]
        earlier_or_better = [o for o in covering if not point.covers(o) or int(o.variant_id) < int(point.variant_id)]
        assert (point in front) == (not earlier_or_better)


def test_of_equal_points_the_more_trusted_one_is_on_the_front() -> None:
    hosted, replayed = Point("a", 2.0, 0.5, 64, distrust=1), Point("b", 2.0, 0.5, 64)
    assert pareto_front([hosted, replayed]) == (replayed,)
    front = Front()
    front.add(hosted)
    assert set(front.add(replayed)) == {"a", "b"}


@given(points, st.data())
def test_the_kept_front_equals_the_computed_one_also_after_removals(found: list[Point], data: st.DataObject) -> None:
    kept = Front()
    members: set[str] = set()
    for point in found:
        members ^= set(kept.add(point))
    gone = data.draw(st.sets(st.sampled_from([point.variant_id for point in found]))) if found else set()
    left = list(found)
    for variant_id in sorted(gone):
        left = [point for point in left if point.variant_id != variant_id]
        members ^= set(kept.replace(variant_id, None, left))
    expected = pareto_front(point for point in found if point.variant_id not in gone)
    assert set(kept.points) == set(expected)
    assert members == {point.variant_id for point in expected}, "what entered and left was reported"


def members(*scores: float, lineage: str = "t/0/0", cells: tuple[int, ...] | None = None) -> list[Member]:
    return [
        Member(f"v{place}", place, score, lineage, (0 if cells is None else cells[place],)) for place, score in enumerate(scores)
    ]


def test_tournaments_prefer_the_best_and_let_the_worst_leave() -> None:
    pool, selection, rng = members(1.0, 3.0, 2.0, 2.0), Tournament(3, 2), np.random.default_rng(0)
    picks = [selection.pick(pool, rng).variant_id for _ in range(400)]
    assert picks.count("v1") > 200 > 20 > picks.count("v0")
    assert [member.variant_id for member in selection.surplus(pool, keep=set())] == ["v3", "v0"], "of equals the younger leaves"
    assert [member.variant_id for member in selection.surplus(pool, keep={"v0"})] == ["v2", "v3"]


def test_map_elites_keeps_each_cells_best_and_draws_cells_evenly() -> None:
    pool, selection, rng = members(1.0, 3.0, 2.0, cells=(0, 1, 1)), MapElites(8), np.random.default_rng(0)
    assert [member.variant_id for member in selection.surplus(pool, keep=set())] == ["v2"]
    assert selection.surplus(pool, keep={"v2"}) == ()
    picks = [selection.pick(pool, rng).variant_id for _ in range(400)]
    assert 140 < picks.count("v0") < 260
    assert picks.count("v2") == 0
    assert len(MapElites(1).surplus(pool, keep=set())) == 2, "capacity holds over all cells"


def test_an_island_never_loses_the_best_of_an_open_lineage() -> None:
    settings = SearchSettings(island_capacity=2)
    island = Island("t", 0, settings, Tournament(3, 2))
    weak, strong = island.open("a", 1.0), island.open("b", 5.0)
    island.add(Member("a", 0, 1.0, weak.name, ()))
    for number, score in enumerate((5.0, 6.0, 7.0), start=1):
        island.add(Member(f"s{number}", number, score, strong.name, ()))
    assert set(island.members) == {"a", "s3"}
    island.abandon(weak.name)
    assert island.add(Member("s4", 4, 5.5, strong.name, ())) == ("a",)


def test_the_bandit_learns_what_gains_and_forgets_in_time() -> None:
    bandit, rng = Bandit(floor=0.1, memory=20), np.random.default_rng(0)
    for _ in range(40):
        bandit.learn("good", reward(1.0, 1.1))
        bandit.learn("bad", reward(1.0, 0.9))
    picks = [bandit.choose(["bad", "good"], rng) for _ in range(300)]
    assert picks.count("good") > 250
    assert picks.count("bad") > 2, "the floor"
    for _ in range(80):
        bandit.learn("good", 0.0)
        bandit.learn("bad", 0.8)
    picks = [bandit.choose(["bad", "good"], rng) for _ in range(300)]
    assert picks.count("bad") > 250
    assert bandit.arms["good"].uses == 120


def test_rewards_grow_with_the_gain_and_count_a_repair_in_full() -> None:
    assert reward(1.0, 1.0) == reward(1.0, 0.0) == reward(0.0, 0.0) == 0.0
    assert 0 < reward(1.0, 1.01) < reward(1.0, 1.05) < reward(1.0, 2.0) <= 1.0
    assert reward(0.0, 0.3) == 1.0


def test_a_lineage_stalls_after_k_evaluated_proposals_without_a_gain() -> None:
    lineage = Lineage("t/0/0", "root", best=2.0)
    for _ in range(SETTINGS.stall_limit - 1):
        lineage.passed(2.0)
    assert lineage.verdict(SETTINGS) is None
    lineage.passed(2.1)
    for _ in range(SETTINGS.stall_limit):
        assert lineage.verdict(SETTINGS) is None
        lineage.passed(1.0)
    verdict = lineage.verdict(SETTINGS)
    assert verdict is not None
    assert verdict[0] is EventKind.STALLED
    lineage.abandoned = True
    assert lineage.verdict(SETTINGS) is None


def test_a_lineage_is_trapped_by_repairs_by_equal_errors_or_by_a_repeated_ancestor() -> None:
    repairs = Lineage("t/0/0", "root")
    for chain in range(1, SETTINGS.max_repairs + 1):
        assert repairs.verdict(SETTINGS) is None
        repairs.failed(f"error {chain}", chain)
    errors = Lineage("t/0/1", "root", best=1.0)
    for _ in range(SETTINGS.signature_limit - 1):
        errors.failed("same", 1)
    errors.passed(0.9)
    errors.failed("same", 1)
    assert errors.verdict(SETTINGS) is None, "it passed in between"
    errors.failed("same", 1)
    errors.failed("same", 1)
    circle = Lineage("t/0/2", "root", best=1.0)
    circle.repeated("grandparent")
    for lineage in (repairs, errors, circle):
        verdict = lineage.verdict(SETTINGS)
        assert verdict is not None
        assert verdict[0] is EventKind.TRAPPED


def test_a_lineage_that_never_passed_is_given_up_too() -> None:
    lineage = Lineage("t/0/0", "broken")
    for number in range(SETTINGS.stall_limit):
        assert lineage.verdict(SETTINGS) is None
        lineage.failed(f"error {number}", 1)
    verdict = lineage.verdict(SETTINGS)
    assert verdict == (EventKind.STALLED, f"{SETTINGS.stall_limit} evaluated proposals without one that passes")


def test_exhaustion_counts_repeats_in_a_row_and_takes_a_refusal_at_its_word() -> None:
    state = Exhaustion(SearchSettings(fruitless_limit=2, operator_failure_limit=4))
    state.fruitless("widen", ("a",), applies=False)
    assert not state.is_open("widen", ("a",))
    assert state.is_open("widen", ("b",))
    state.fruitless("tile", ("a",))
    state.fruitful("tile", ("a",))
    state.fruitless("tile", ("a",))
    assert state.is_open("tile", ("a",))
    for parent in "abcd":
        state.fruitless("llm", (parent,), failed=True)
    assert not state.is_open("llm", ("e",)), "it fails whatever the parents"
    state.new_session()
    assert state.is_open("llm", ("e",))


def test_leases_expire_by_the_clock_and_take_their_reservations_along() -> None:
    now = [0.0]
    book = LeaseBook(epoch=1, lease_s=10.0, clock=lambda: now[0])
    variants = [Variant("t", f"v{number}") for number in range(2)]
    first, second = (book.lease(WorkItem(number, variant, None), "t", "gpu") for number, variant in enumerate(variants))
    book.lend(7)
    assert book.reserve("plan", variants[0].variant_id) is None
    assert book.reserve("plan", variants[1].variant_id) == variants[0].variant_id
    now[0] = 9.0
    assert book.renew(second.token)
    now[0] = 10.0
    assert book.overdue() == (first.token, 7)
    assert book.close(first.token) == first
    assert book.close(first.token) is None
    assert not book.renew(first.token)
    assert book.reserve("plan", variants[1].variant_id) is None
    assert book.is_leased(1, Effort.SEARCH)
    assert not book.is_leased(0, Effort.SEARCH)


def test_what_the_owner_of_the_leases_is_long_at_costs_no_holder_its_lease() -> None:
    now = [0.0]
    book = LeaseBook(epoch=1, lease_s=10.0, clock=lambda: now[0])
    book.lend(3)
    now[0] = 8.0
    with book.paused():
        now[0] = 108.0
    assert book.overdue() == ()
    now[0] = 109.0
    assert book.overdue() == ()
    now[0] = 111.0
    assert book.overdue() == (3,)


def test_random_streams_differ_by_every_part_of_their_place() -> None:
    places = [(1, Draw.CHOICE, "a", 0), (2, Draw.CHOICE, "a", 0), (1, Draw.RESTART, "a", 0), (1, Draw.CHOICE, "b", 0)]
    places.append((1, Draw.CHOICE, "a", 1))
    drawn = {tuple(stream(*place).integers(0, 2**62, size=2)) for place in places}
    assert len(drawn) == len(places)
    assert list(stream(2**63 + 1, Draw.CHOICE, "a", 0).integers(0, 9, size=3)) == list(
        stream(2**63 + 1, Draw.CHOICE, "a", 0).integers(0, 9, size=3)
    )
