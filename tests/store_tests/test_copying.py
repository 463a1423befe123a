"""Stores are copied between backends whole, compared, and not at all where that is not possible."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evo.errors import StoreError, StoreInUseError, StoreMissingError
from population_store.base import Entry, PopulationStore
from population_store.contract import samples
from population_store.copying import copy_store
from population_store.opening import open_store
from population_store.sqlite import SqliteStore
from tests.store_tests.postgresql_service import Service


def stores_in(folder: Path) -> list[str]:
    """Files but those that SQLite leaves beside a store that was read."""
    return sorted(name for name in os.listdir(folder) if not name.endswith(("-shm", "-wal")))


def filled(url: str) -> list[Entry]:
    entries: list[Entry] = [entry for number in range(400) for entry in (*samples.history(number), samples.event(number))]
    entries += [samples.tried(3, 0), samples.request(900), samples.no_proposal(900), samples.verified(7, samples.passed(7, 1.4))]
    with open_store(url, header=samples.HEADER) as store:
        store.record(entries, samples.spent_after(401))
    return entries


def test_there_and_back_between_the_backends(postgresql: Service, tmp_path: Path) -> None:
    first, there, back = str(tmp_path / "a.sqlite"), postgresql.url(schema="copied"), str(tmp_path / "b.sqlite")
    entries = filled(first)
    assert copy_store(first, there) == len(entries)
    assert copy_store(there, back) == len(entries)
    for url in (there, back):
        with open_store(url, write=True) as store:  # and it goes on
            assert [entry for _, entry in store.journal()] == entries
            assert (store.header, store.spent) == (samples.HEADER, samples.spent_after(401))
            assert store.record(samples.history(401), samples.spent_after(402)) == (True, True, True)
    assert stores_in(tmp_path) == ["a.sqlite", "b.sqlite"]


def test_what_exists_is_not_replaced(tmp_path: Path) -> None:
    first, second = str(tmp_path / "a.sqlite"), tmp_path / "b.sqlite"
    filled(first)
    second.write_text("something else")
    for target in (str(second), first):
        with pytest.raises(StoreError, match="exists already"):
            copy_store(first, target)
    assert second.read_text() == "something else"
    with pytest.raises(StoreMissingError, match="no such population store"):
        copy_store(str(tmp_path / "c.sqlite"), str(tmp_path / "d.sqlite"))
    assert stores_in(tmp_path) == ["a.sqlite", "b.sqlite"]


@pytest.mark.parametrize("suffix", [".copy", ".new", ".bak"])
def test_a_copy_comes_back_whatever_it_is_called_and_stays_itself(tmp_path: Path, suffix: str) -> None:
    lost = str(tmp_path / "a.sqlite")
    entries = filled(lost + suffix)
    assert copy_store(lost + suffix, lost) == len(entries)
    assert stores_in(tmp_path) == ["a.sqlite", f"a.sqlite{suffix}"]


def test_a_copy_in_another_schema_comes_back_whatever_that_is_called_and_stays_itself(postgresql: Service) -> None:
    lost, kept = postgresql.url(schema="lost"), postgresql.url(schema="lost_copy")
    entries = filled(kept)
    assert copy_store(kept, lost) == len(entries)
    for url in (lost, kept):
        with open_store(url) as store:
            assert [entry for _, entry in store.journal()] == entries


def test_a_source_that_is_being_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = str(tmp_path / "a.sqlite"), tmp_path / "b.sqlite"
    filled(first)
    recorded = SqliteStore.record

    def meanwhile(store: PopulationStore, *given: object) -> tuple[bool, ...]:
        if store.counts() == {}:  # the copy's first batch
            with open_store(first, write=True) as run:
                recorded(run, [samples.event(0)], samples.spent_after(402))
        return recorded(store, *given)

    monkeypatch.setattr(SqliteStore, "record", meanwhile)
    with pytest.raises(StoreInUseError, match="stop it first"):
        copy_store(first, str(second))
    assert not second.exists()


def test_a_copy_that_differs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = str(tmp_path / "a.sqlite"), tmp_path / "b.sqlite"
    filled(first)
    recorded = SqliteStore.record
    monkeypatch.setattr(SqliteStore, "record", lambda store, entries, spent: recorded(store, entries[:-1] or entries, spent))
    with pytest.raises(StoreError, match="not equal"):
        copy_store(first, str(second))
    assert not second.exists()
