"""Contract: what was recorded comes back as it was, once, whole or not at all."""

# ruff: noqa: D102  (the name of each test is its promise)

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from evo.records import Event, Spent
from population_store.base import Entry, PopulationStore
from population_store.contract import samples
from population_store.contract.fixtures import NewUrl, StoreFixtures, sequence_of
from population_store.contract.model import Model
from population_store.contract.strategies import TASKS, histories
from population_store.opening import open_store


class RecordingContract(StoreFixtures):
    """The journal is exact, ordered, and its batches are atomic."""

    @given(batches=histories())
    @settings(
        max_examples=15,
        deadline=None,
        # Every example makes a store of its own, so that the fixture may be shared; subclasses run the same body.
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow],
    )
    def test_any_history_comes_back_as_it_was(self, new_url: NewUrl, batches: list[tuple[list[Entry], Spent]]) -> None:
        url, model = new_url(), Model()
        with open_store(url, write=True, header=samples.HEADER) as store:
            for entries, spent in batches:
                assert store.record(entries, spent) == tuple(model.add(entry) for entry in entries)
                assert store.spent == spent
        with open_store(url) as reader:
            # By their texts, because 1 == True == 1.0.
            assert [repr(entry) for _, entry in reader.journal()] == [repr(entry) for entry in model.journal]
            assert reader.events() == tuple(entry for entry in model.journal if isinstance(entry, Event))
            assert reader.counts() == model.counts()
            for task in TASKS:
                ranked = reader.ranking(task)
                assert [(row.variant.variant_id, row.search, row.verify) for row in ranked] == model.ranking(task)

    def test_the_journal_goes_on_after_a_number(self, store: PopulationStore) -> None:
        for number in range(3):
            store.record([*samples.history(number), samples.event(number)], samples.spent_after(number))
        everything = list(store.journal())
        assert len(everything) == 12
        for seq, _ in everything:
            assert list(store.journal(after=seq)) == [pair for pair in everything if pair[0] > seq]
        assert list(store.journal(after=everything[-1][0] + 1)) == []

    def test_a_long_journal_is_whole_and_in_order(self, store: PopulationStore) -> None:
        entries: list[Entry] = [entry for number in range(400) for entry in samples.history(number)]
        store.record(entries, Spent())
        assert [entry for _, entry in store.journal()] == entries

    def test_a_variant_is_found_by_its_id(self, store: PopulationStore) -> None:
        store.record(samples.history(7), Spent())
        assert store.variant(samples.variant(7).variant_id) == samples.variant(7)

    def test_what_is_there_is_ignored_and_reported(self, store: PopulationStore) -> None:
        first = samples.history(0)
        other = samples.outcome(0, of=samples.variant(5))
        assert store.record([*first, *first, other], samples.spent_after(1)) == (True, True, True, False, False, False, False)
        again = samples.searched(0, samples.failed(0))
        assert store.record([samples.request(0, task="gemm"), again, samples.request(1)], Spent()) == (False, False, True)
        assert [entry for _, entry in store.journal()] == [*first, samples.request(1)]
        assert store.ranking("softmax")[0].search == samples.passed(0, 1.5)
        assert store.counts() == {"softmax": {"passed": 1, "pending": 1}}

    def test_trials_are_there_before_their_evaluation_and_once(self, store: PopulationStore) -> None:
        store.record(samples.history(0)[:2], Spent())
        first, second = samples.tried(0, 0), samples.tried(0, 1)
        assert store.record([first], Spent()) == (True,)
        assert store.record([first, second, second], Spent()) == (False, True, False)
        verdict = samples.searched(0, samples.passed(0, 1.5))
        store.record([verdict], Spent())
        assert [entry for _, entry in store.journal()][2:] == [first, second, verdict]

    def test_each_purpose_has_its_own_evaluation(self, store: PopulationStore) -> None:
        verify = samples.verified(0, samples.passed(0, 1.2))
        assert store.record([*samples.history(0), verify, verify], Spent()) == (True, True, True, True, False)

    @pytest.mark.parametrize(
        "bad",
        [
            samples.outcome(9),
            samples.no_proposal(9),
            samples.searched(9, samples.passed(9, 1.0)),
            samples.searched(1, samples.passed(1, 1.0)),
            samples.verified(0, samples.passed(9, 1.0)),
            samples.outcome(1, of=samples.variant(1, task="gemm")),
            samples.tried(9, 0),
            samples.tried(1, 0),
        ],
        ids=[
            "outcome of no request",
            "none of no request",
            "of no request",
            "of no outcome",
            "of another variant",
            "another task",
            "trials of no request",
            "trials of no outcome",
        ],
    )
    def test_an_entry_that_refers_to_nothing_takes_its_batch_back(self, store: PopulationStore, bad: Entry) -> None:
        store.record(samples.history(0), samples.spent_after(1))
        before = list(store.journal())
        with pytest.raises(ValueError, match="request"):
            store.record([samples.event(0), samples.request(1), *samples.history(2), bad], samples.spent_after(7))
        assert list(store.journal()) == before
        assert store.spent == samples.spent_after(1)
        assert store.counts() == {"softmax": {"passed": 1}}
        assert store.variant(samples.variant(2).variant_id) is None
        store.record(samples.history(2), samples.spent_after(2))
        assert sequence_of(store) == list(range(before[0][0], before[0][0] + 6))
