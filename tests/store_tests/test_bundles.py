"""Bundles and merging: every journal survives the way, damage and lies are found before anything is recorded, two ways on are reported."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given

from evo.errors import BundleError
from evo.records import Evaluation, Proposal, Request, Spent, Stage, Status, Variant
from population_store import bundles
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, PopulationStore, Purpose
from population_store.bundles import Bundle, bundle_of, read_bundle, write_bundle
from population_store.contract import samples
from population_store.contract.strategies import histories
from population_store.entries import canonical, entry_from_json, entry_to_json
from population_store.merging import merge
from population_store.opening import open_store


def proposal(number: int, source: str = "") -> list[Entry]:
    """A request and what came of it."""
    variant = Variant("softmax", source or f"x = {number}")
    request = Request(number, "softmax", 0, "softmax/0/0", "start", ())
    return [request, OutcomeEntry(number, Proposal(variant.source, "s"), variant)]


def verdict(number: int) -> Entry:
    """That the variant of `proposal` failed."""
    variant_id = Variant("softmax", f"x = {number}").variant_id
    return EvaluationEntry(number, Purpose.SEARCH, Evaluation(variant_id, Status.COMPILE_ERROR, Stage.COMPILE, "d", message="m"))


def filled(path: Path, *entries: Entry, spent: Spent | None = None) -> PopulationStore:
    store = open_store(str(path), header=samples.HEADER)
    if entries:
        store.record(entries, spent or Spent())
    return store


@pytest.fixture
def store(tmp_path: Path) -> PopulationStore:
    return filled(tmp_path / "a.sqlite", *proposal(0), *proposal(1), verdict(0), spent=Spent(1, 2, 3.5, 1.25, 0.5, 100))


def entries_of(store: PopulationStore) -> list[Entry]:
    return [entry for _, entry in store.journal()]


@given(histories())
def test_any_journal_is_read_back_as_it_was(history: list[tuple[list[Entry], Spent]]) -> None:
    for batch, _ in history:
        for entry in batch:
            document = json.loads(json.dumps(entry_to_json(entry)))
            assert repr(entry_from_json(document)) == repr(entry)
            assert canonical(document) == canonical(entry_to_json(entry))


@pytest.mark.parametrize("name", ["b.jsonl", "b.jsonl.gz"])
def test_a_bundle_makes_an_equal_store_elsewhere(tmp_path: Path, name: str) -> None:
    entries = [entry for index in range(3) for entry in samples.batch(index)] + [samples.tried(0, 0), samples.no_proposal(99)]
    entries.insert(-1, samples.request(99))
    with filled(tmp_path / "a.sqlite", *entries, spent=samples.spent_after(15)) as store:
        write_bundle(bundle_of(store), tmp_path / name)
        first = (tmp_path / name).read_bytes()
        write_bundle(bundle_of(store), tmp_path / name)
        assert (tmp_path / name).read_bytes() == first, "an equal bundle is an equal file"
        with filled(tmp_path / "b.sqlite") as other:
            bundle = read_bundle(tmp_path / name)
            assert merge(other, bundle, "b") == len(entries)
            assert entries_of(other) == entries_of(store) == entries
            assert other.spent == store.spent
            assert bundle_of(other).head == bundle_of(store).head
            assert merge(other, bundle, "b") == 0, "the same once more"
            assert entries_of(other) == entries


def test_turns_on_two_stores_carry_only_what_is_new(tmp_path: Path, store: PopulationStore) -> None:
    with store, filled(tmp_path / "b.sqlite") as other:
        merge(other, bundle_of(store), "b1")
        other.record([verdict(1)], dataclasses.replace(other.spent, evaluations=2, gpu_s=2.0))
        answer = bundle_of(other, begin=5)
        assert (answer.base.entries, answer.head.entries) == (5, 6)
        store.record([], dataclasses.replace(store.spent, held_dollars=0.25))  # a request that was killed here meanwhile
        assert merge(store, answer, "b2") == 1
        assert entries_of(store) == entries_of(other)
        assert store.spent == dataclasses.replace(other.spent, held_dollars=0.25)
        store.record([*proposal(2)], store.spent)
        assert merge(other, bundle_of(store, begin=3), "b3") == 2, "a base that is older than need be"
        assert entries_of(store) == entries_of(other)
        assert merge(other, answer, "b2") == 0, "its own bundle, and an old one"


def test_two_ways_on_are_reported_with_both_ends_and_change_nothing(tmp_path: Path, store: PopulationStore) -> None:
    with store, filled(tmp_path / "b.sqlite") as other:
        merge(other, bundle_of(store), "b1")
        store.record(proposal(2), Spent())
        other.record([verdict(1), *proposal(3)], Spent())
        before = entries_of(store)
        with pytest.raises(BundleError, match="differ from entry 6 on") as caught:
            merge(store, bundle_of(other, begin=5), "b2")
        assert all(bundle_of(each).head.head[:12] in str(caught.value) for each in (store, other))
        assert "\n" not in str(caught.value)
        assert entries_of(store) == before


def test_a_bundle_without_the_one_before_it_and_one_of_another_run_are_refused(tmp_path: Path, store: PopulationStore) -> None:
    with store, filled(tmp_path / "b.sqlite") as empty:
        with pytest.raises(BundleError, match="begins 3 entries after the store's end"):
            merge(empty, bundle_of(store, begin=3), "b")
        header = dataclasses.replace(samples.HEADER, created="2026-01-02T00:00:00+00:00")
        with pytest.raises(BundleError, match="2026-01-02"):
            merge(empty, dataclasses.replace(bundle_of(store), header=header), "b")
        assert entries_of(empty) == []


def test_what_contradicts_itself_is_refused_as_a_whole(tmp_path: Path, store: PopulationStore) -> None:
    with store, filled(tmp_path / "b.sqlite") as empty:
        whole = bundle_of(store)
        for entries in (
            whole.entries[1:],
            (*whole.entries, *proposal(0)),
            (*whole.entries[:-1], samples.searched(0, samples.failed(5))),
        ):
            points = tuple(bundles.points_of(samples.HEADER, entries))
            forged = Bundle(samples.HEADER, points[0], points[1:], tuple(entries), whole.spent)
            with pytest.raises(BundleError):
                merge(empty, forged, "b")
            assert entries_of(empty) == []


Forgery = Callable[[list[bytes]], list[bytes]]


def edited(place: int, **changes: object) -> Forgery:
    """Keys of one line set to something else."""

    def edit(lines: list[bytes]) -> list[bytes]:
        document = {**json.loads(lines[place]), **changes}
        return [*lines[:place], json.dumps(document).encode() + b"\n", *lines[place:][1:]]

    return edit


FORGERIES: dict[str, tuple[Forgery, str]] = {
    "empty": (lambda lines: [], "not copied whole"),
    "text": (lambda lines: [b"softmax: 1\n"], "cannot be used"),
    "binary": (lambda lines: [b"\x7fELF\xff\xfe" * 400], "not copied whole"),
    "other json": (lambda lines: [b'{"format": 1}\n'], "no bundle of triton-evolve"),
    "cut between lines": (lambda lines: lines[:-1], "not copied whole"),
    "cut in a line": (lambda lines: [*lines[:3], lines[3][:20]], ":4; this bundle cannot be used: a line without an end"),
    "a line left out": (lambda lines: [*lines[:2], *lines[3:]], "another one"),
    "two lines exchanged": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "another one"),
    "more after the end": (lambda lines: [*lines, lines[1]], "more follows"),
    "a figure changed": (lambda lines: [line.replace(b'"x = 1"', b'"x = 2"') for line in lines], "another one"),
    "version": (edited(0, version=2), "another version of the format"),
    "kind": (edited(1, kind="pickle"), ":2; this bundle cannot be used: no entry"),
    "further key": (edited(1, code="import os"), "an entry of kind request has request"),
    "number": (edited(2, number=-1), "whole number"),
    "number of another type": (edited(2, number=True), "whole number"),
    "record of another type": (edited(1, request=[1]), "must be an object"),
    "negative money": (edited(-1, spent=Spent(dollars=-5.0).to_json()), "negative"),
    "no number": (lambda lines: [line.replace(b'"dollars":0.5', b'"dollars":NaN') for line in lines], "NaN"),
    "deep": (lambda lines: [lines[0], b"[" * 100_000 + b"]" * 100_000 + b"\n"], "cannot be used"),
    "configuration": (edited(0, run={**samples.HEADER.to_json(), "config": "[]"}), "config of the run"),
    "seed": (edited(0, run={**samples.HEADER.to_json(), "seed": "1"}), "RunHeader.seed must be int"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_what_is_damaged_or_forged_is_refused_in_one_line(tmp_path: Path, store: PopulationStore, name: str) -> None:
    path = tmp_path / "b.jsonl"
    with store:
        write_bundle(bundle_of(store), path)
    forge, message = FORGERIES[name]
    path.write_bytes(b"".join(forge(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(BundleError) as caught:
        read_bundle(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_small_file_that_unpacks_to_a_huge_one_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"format": "' + b" " * (1 << 22))
    with pytest.raises(BundleError, match="too large"):
        read_bundle(path, max_bytes=1 << 20)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BundleError, match="cannot be read"):
        read_bundle(path)


def test_what_is_no_file_or_somebody_elses_is_left_alone(tmp_path: Path, store: PopulationStore) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "none"):
        with pytest.raises(BundleError, match="cannot be read"):
            read_bundle(path)
    assert str(tmp_path) not in map(os.path.realpath, Path("/proc/self/fd").iterdir()), "it stays open"
    notes = tmp_path / "notes.txt"
    notes.write_text("mine\n")
    with store:
        with pytest.raises(BundleError, match="no bundle"):
            write_bundle(bundle_of(store), notes)
        with pytest.raises(BundleError, match="cannot be written"):
            write_bundle(bundle_of(store), tmp_path / "no folder" / "b.jsonl")
        write_bundle(bundle_of(store), tmp_path / "b.jsonl")
        other = dataclasses.replace(bundle_of(store), header=dataclasses.replace(samples.HEADER, seed=5))
        with pytest.raises(BundleError, match="another run"):
            write_bundle(other, tmp_path / "b.jsonl")
    assert notes.read_text() == "mine\n"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
