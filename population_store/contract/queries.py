"""Contract: the answers to what status, ranking and export ask."""

# ruff: noqa: D102  (the name of each test is its promise)

from __future__ import annotations

import dataclasses

from evo.records import Evaluation, Spent, Status
from population_store.base import Entry, EvaluationEntry, Kept, PopulationStore
from population_store.contract import samples
from population_store.contract.fixtures import StoreFixtures


class QueryContract(StoreFixtures):
    """Rankings, counts and events agree with the journal."""

    def test_the_ranking_prefers_the_verified_fitness(self, store: PopulationStore) -> None:
        for number, fitness in enumerate((1.1, 3.0, 2.0, 1.1)):
            store.record(samples.history(number, fitness=fitness), Spent())
        store.record([samples.request(4), samples.outcome(4), samples.searched(4, samples.failed(4))], Spent())
        assert [row.number for row in store.ranking("softmax")] == [1, 2, 0, 3]
        store.record([samples.verified(1, samples.passed(1, 1.5))], Spent())
        top = store.ranking("softmax", limit=2)
        assert [row.number for row in top] == [2, 1]
        assert (top[0].verify, top[1].verify) == (None, samples.passed(1, 1.5))
        assert (top[1].request, top[1].variant, top[1].strategy) == (samples.request(1), samples.variant(1), "widen 1")
        assert top[1].search == samples.passed(1, 3.0)
        assert store.ranking("gemm") == ()

    def test_a_variant_that_fails_its_verification_is_not_ranked(self, store: PopulationStore) -> None:
        store.record([*samples.history(0), samples.verified(0, samples.failed(0)), *samples.history(1)], Spent())
        assert [row.number for row in store.ranking("softmax")] == [1]

    def test_what_was_verified_is_told_whatever_came_of_it(self, store: PopulationStore) -> None:
        store.record([entry for number in range(4) for entry in samples.history(number)], Spent())
        assert store.verified("softmax") == ()
        store.record([samples.verified(2, samples.failed(2)), samples.verified(1, samples.passed(1, 1.5))], Spent())
        store.record([samples.verified(3, samples.failed(3, Status.DUPLICATE))], Spent())
        found = store.verified("softmax")
        assert [row.number for row in found] == [1, 2], "a duplicate is no verdict"
        assert [row.verify for row in found] == [samples.passed(1, 1.5), samples.failed(2)]
        assert found[0] == next(row for row in store.ranking("softmax") if row.number == 1)
        assert store.verified("gemm") == ()

    def test_a_variant_proposed_twice_is_one_row(self, store: PopulationStore) -> None:
        twin, elder = samples.request(1), samples.variant(0)
        duplicate = samples.failed(1, Status.DUPLICATE, of=elder)
        store.record([*samples.history(0), twin, samples.outcome(1, of=elder), samples.searched(1, duplicate)], Spent())
        assert [(row.number, row.variant) for row in store.ranking("softmax")] == [(0, elder)]
        better = samples.passed(2, 1.9, of=elder)
        store.record([samples.request(2), samples.outcome(2, of=elder), samples.searched(2, better)], Spent())
        assert [(row.number, row.search) for row in store.ranking("softmax")] == [(2, better)]
        assert store.counts() == {"softmax": {"duplicate": 1, "passed": 2}}

    def test_counts_follow_a_request_through_its_life(self, store: PopulationStore) -> None:
        store.record([samples.request(0), samples.request(1), samples.request(2, task="gemm")], Spent())
        assert store.counts() == {"softmax": {"pending": 2}, "gemm": {"pending": 1}}
        store.record([samples.outcome(0), samples.no_proposal(1)], Spent())
        assert store.counts() == {"softmax": {"pending": 1, "no_proposal": 1}, "gemm": {"pending": 1}}
        store.record([samples.verified(0, samples.passed(0, 1.0))], Spent())
        assert store.counts()["softmax"] == {"pending": 1, "no_proposal": 1}
        store.record([samples.searched(0, samples.failed(0, Status.TIMEOUT))], Spent())
        assert store.counts()["softmax"] == {"timeout": 1, "no_proposal": 1}

    def test_a_variant_is_known_from_its_first_outcome_on(self, store: PopulationStore) -> None:
        store.record([*samples.history(0), samples.request(1), samples.outcome(1, of=samples.variant(0))], Spent())
        store.record([samples.request(2), samples.outcome(2), samples.request(3, task="gemm")], Spent())
        other = samples.variant(3, task="gemm")
        store.record([samples.outcome(3, of=other)], Spent())
        wanted = samples.variant(0).variant_id
        first = next(seq for seq, entry in store.journal() if entry == samples.outcome(0))
        assert [store.is_known(wanted, first - 1), store.is_known(wanted, first)] == [False, True]
        assert not store.is_known("0" * 24, 1_000)
        assert list(store.modules("softmax")) == [samples.variant(0), samples.variant(2)]
        assert list(store.modules("gemm")) == [other]

    def test_a_plan_belongs_to_the_variant_that_was_judged_on_it_first(self, store: PopulationStore) -> None:
        def judged(number: int, evaluation: Evaluation) -> list[Entry]:
            return [samples.request(number), samples.outcome(number), samples.searched(number, evaluation)]

        elder, younger, elsewhere = (dataclasses.replace(samples.passed(number, 1.5), plan_hash="p") for number in range(3))
        elsewhere = dataclasses.replace(elsewhere, device="NVIDIA H200")
        repeated = dataclasses.replace(samples.failed(3, Status.DUPLICATE), plan_hash="q")
        store.record([*judged(0, elder), *judged(1, younger), *judged(2, elsewhere), *judged(3, repeated)], Spent())
        store.record([samples.verified(3, dataclasses.replace(samples.failed(3), plan_hash="q"))], Spent())
        end = max(seq for seq, _ in store.journal())
        first = next(seq for seq, entry in store.journal() if isinstance(entry, EvaluationEntry))
        device, owners = elder.device, [samples.variant(number).variant_id for number in range(3)]
        assert store.plan_owner("softmax", device, "p", end) == owners[0]
        assert store.plan_owner("softmax", device, "p", first - 1) is None
        assert store.plan_owner("softmax", "NVIDIA H200", "p", end) == owners[2]
        assert store.plan_owner("softmax", "", "p", end) == owners[0]
        assert store.plan_owner("gemm", device, "p", end) is None
        assert store.plan_owner("softmax", device, "q", end) is None, "a duplicate and a verification own nothing"

    def test_what_was_worked_out_is_kept_once_per_name_with_its_place_in_the_journal(self, store: PopulationStore) -> None:
        assert store.kept("search") is None
        store.record(samples.history(0), Spent())
        end = max(seq for seq, _ in store.journal())
        assert store.keep("search", "k1", '{"a": "\\u0000"}') == end
        assert store.kept("search") == Kept(end, "k1", '{"a": "\\u0000"}')
        store.record(samples.history(1), Spent())
        assert store.keep("search", "k2", "{}") > end
        assert store.kept("search") == Kept(store.keep("digest", "", "x" * 100_000), "k2", "{}")
        assert len(list(store.journal())) == 2 * len(samples.history(0)), "the journal does not change"

    def test_events_are_kept_every_time(self, store: PopulationStore) -> None:
        assert store.record([samples.event(0), samples.event(0)], Spent()) == (True, True)
        store.record([samples.request(0), samples.event(4)], Spent())
        assert store.events() == (samples.event(0), samples.event(0), samples.event(4))
