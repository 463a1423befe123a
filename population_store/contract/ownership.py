"""Contract: one owner, readers that never wait, and nothing lost when the owner is killed."""

# ruff: noqa: D102  (the name of each test is its promise)

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from evo.errors import StoreInUseError
from evo.records import Spent
from population_store.base import PopulationStore
from population_store.contract import samples
from population_store.contract.fixtures import StoreFixtures, child_environment, in_another_process, sequence_of
from population_store.opening import open_store

_AT_ONCE_S = 8
"""Far more than it takes on a busy machine, less than the wait for a lock."""

_OPEN_FOR_WRITING = """
import sys
from evo.errors import StoreError
from population_store.opening import open_store
try:
    store = open_store(sys.argv[1], write=True)
    print("opened")
except StoreError as error:
    print(type(error).__name__)
    print(error, file=sys.stderr)
"""

_COUNT_ENTRIES = """
import sys
from population_store.opening import open_store
with open_store(sys.argv[1]) as store:
    print(len(list(store.journal())))
"""


def _write_and_kill(url: str, first: int, chance: random.Random) -> int:
    """Lets another process write until it is killed at some moment; how many batches, from 0, it acknowledged last."""
    command = [sys.executable, "-m", "population_store.contract.writer", url, str(first)]
    with subprocess.Popen(command, env=child_environment(), stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        try:
            assert writer.stdout.readline() == "open\n", "the store did not open at once after a kill"
            for _ in range(chance.randrange(6)):
                writer.stdout.readline()
            time.sleep(chance.uniform(0, 0.05))
        finally:
            writer.send_signal(signal.SIGKILL)
        said = [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    return int(said[-1]) + 1 if said else first


class OwnershipContract(StoreFixtures):
    """Processes and threads beside each other, and the sudden end of one."""

    kills = 5
    """Rounds of the `kill -9` test; more find rarer faults."""

    def test_a_second_owner_is_refused_while_a_reader_reads(self, store: PopulationStore, url: str) -> None:
        store.record(samples.history(0), samples.spent_after(1))
        with pytest.raises(StoreInUseError, match=str(os.getpid())):
            open_store(url, write=True)
        refused = in_another_process(_OPEN_FOR_WRITING, url)
        assert (refused.stdout, refused.returncode) == ("StoreInUseError\n", 0), refused.stderr
        assert str(os.getpid()) in refused.stderr
        read = in_another_process(_COUNT_ENTRIES, url)
        assert (read.stdout, read.returncode) == ("3\n", 0), read.stderr
        store.record(samples.history(1), samples.spent_after(2))

    def test_ownership_passes_on_when_it_is_given_up(self, store: PopulationStore, url: str) -> None:
        with pytest.raises(StoreInUseError):
            open_store(url, write=True)
        store.close()
        opened = in_another_process(_OPEN_FOR_WRITING, url)
        assert (opened.stdout, opened.returncode) == ("opened\n", 0), opened.stderr
        open_store(url, write=True).close()  # that process ended without closing

    def test_neither_reader_nor_writer_waits(self, store: PopulationStore, url: str) -> None:
        store.record([entry for number in range(600) for entry in samples.history(number)], Spent())
        with open_store(url) as reader:
            begin = time.monotonic()
            journal = reader.journal()
            first = next(journal)
            store.record(samples.history(600), Spent())
            with open_store(url) as later:
                assert later.counts() == {"softmax": {"passed": 601}}
            assert time.monotonic() - begin < _AT_ONCE_S
            assert len([first, *journal]) == 3 * 601  # the journal follows the writer

    def test_threads_of_the_owner_may_record_and_read(self, store: PopulationStore) -> None:
        errors: list[Exception] = []

        def work(first: int) -> None:
            try:
                for number in range(first, first + 10):
                    assert store.record(samples.history(number), Spent()) == (True, True, True)
                    assert store.variant(samples.variant(number).variant_id) is not None
                    store.counts()
            except Exception as error:  # noqa: BLE001  (reported below, in the thread that can fail the test)
                errors.append(error)

        threads = [threading.Thread(target=work, args=(10 * index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert store.counts() == {"softmax": {"passed": 40}}
        assert sequence_of(store) == sorted(set(sequence_of(store)))
        assert len(sequence_of(store)) == 120

    def test_kill_9_loses_nothing_that_was_acknowledged(self, store: PopulationStore, url: str) -> None:
        store.close()
        chance, recorded = random.Random(9), 0
        for _ in range(self.kills):
            acknowledged = _write_and_kill(url, recorded, chance)
            with open_store(url) as reader:  # before any owner could mend something
                seen = len(list(reader.journal()))
            begin = time.monotonic()
            with open_store(url, write=True) as survivor:
                assert time.monotonic() - begin < _AT_ONCE_S
                entries = [entry for _, entry in survivor.journal()]
                recorded, rest = divmod(len(entries), len(samples.batch(0)))
                assert rest == 0, "a batch is there in part"
                assert len(entries) == seen
                assert recorded >= acknowledged
                assert entries == [entry for index in range(recorded) for entry in samples.batch(index)]
                assert survivor.spent == (samples.spent_after(recorded) if recorded else Spent())
                assert survivor.counts().get("softmax", {}) == ({"passed": 5 * recorded} if recorded else {})
                # The batch that the kill cut off left nothing that would make a part of it old.
                assert all(survivor.record(samples.batch(recorded), samples.spent_after(recorded + 1)))
                recorded += 1
        assert recorded > self.kills
