"""Contract: stores are made, found, reopened and closed."""

# ruff: noqa: D102  (the name of each test is its promise)

from __future__ import annotations

import pytest

from evo.errors import StoreError
from evo.records import Spent
from population_store.base import PopulationStore
from population_store.contract import samples
from population_store.contract.fixtures import NewUrl, StoreFixtures, sequence_of
from population_store.opening import backend_of, open_store, store_exists


class OpeningContract(StoreFixtures):
    """A store begins, is never overwritten, and goes on."""

    def test_a_new_store_knows_its_run_and_nothing_else(self, store: PopulationStore) -> None:
        assert store.header == samples.HEADER
        assert store.spent == Spent()
        assert list(store.journal()) == []
        assert (store.counts(), store.events(), store.ranking("softmax")) == ({}, (), ())
        assert store.variant(samples.variant(0).variant_id) is None

    def test_a_missing_store_says_how_to_start_one(self, new_url: NewUrl) -> None:
        url = new_url()
        for write in (False, True):
            with pytest.raises(StoreError, match="triton-evolve run"):
                open_store(url, write=write)

    def test_an_existing_store_is_never_overwritten(self, store: PopulationStore, url: str) -> None:
        store.record(samples.history(0), samples.spent_after(1))
        store.close()
        with pytest.raises(StoreError, match="triton-evolve resume"):
            open_store(url, write=True, header=samples.HEADER)
        with open_store(url) as reader:
            assert len(list(reader.journal())) == 3

    def test_a_reopened_store_goes_on_where_it_was(self, store: PopulationStore, url: str) -> None:
        store.record(samples.history(0), samples.spent_after(1))
        store.close()
        with open_store(url, write=True) as again:
            assert again.header == samples.HEADER
            assert again.spent == samples.spent_after(1)
            again.record(samples.history(1), samples.spent_after(2))
            assert [entry for _, entry in again.journal()] == samples.history(0) + samples.history(1)
            assert sequence_of(again) == sorted(set(sequence_of(again)))

    def test_only_an_open_owner_records(self, store: PopulationStore, url: str) -> None:
        with open_store(url) as reader, pytest.raises(StoreError):
            reader.record([samples.request(0)], Spent())
        assert list(store.journal()) == []
        store.close()
        store.close()
        with pytest.raises(StoreError):
            store.record([samples.request(0)], Spent())

    def test_a_store_that_is_built_is_there_whole_or_not_at_all(self, new_url: NewUrl) -> None:
        url = new_url()
        with pytest.raises(StoreError, match="no such population store"):
            _build_and_look(url)
        assert not store_exists(url)
        with backend_of(url).build(url, samples.HEADER) as store:
            store.record(samples.history(1), samples.spent_after(1))
        with open_store(url, write=True) as built:
            assert [entry for _, entry in built.journal()] == samples.history(1)
        with pytest.raises(StoreError, match="exists already"), backend_of(url).build(url, samples.HEADER):
            pass


def _build_and_look(url: str) -> None:
    with backend_of(url).build(url, samples.HEADER) as store:
        store.record(samples.history(0), samples.spent_after(1))
        open_store(url)  # it is not there yet
