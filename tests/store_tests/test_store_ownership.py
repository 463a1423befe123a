"""What killed, forked and competing processes leave of a store that is a file."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from evo.errors import StoreError, StoreInUseError
from evo.records import Spent
from population_store.base import PopulationStore
from population_store.contract import samples
from population_store.contract.fixtures import child_environment, in_another_process
from population_store.opening import open_store
from population_store.sqlite_file import clear_errors, writing_engine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.sqlite"


def new_store(path: Path) -> PopulationStore:
    return open_store(str(path), write=True, header=samples.HEADER)


class TestOwnership:
    def test_remains_of_a_killed_process_are_no_obstacle(self, path: Path) -> None:
        path.with_name(f".{path.name}.triton-evolve-draft").write_text("half a store")
        Path(f"{path}.lock").write_text('{"pid": 1, "host": "elsewhere", "since": "long ago"}')
        with new_store(path) as store:
            store.record(samples.history(0), Spent())
        assert os.listdir(path.parent) == [path.name]
        Path(f"{path}.lock").write_text("")
        open_store(str(path), write=True).close()

    def test_the_log_of_a_killed_run_whose_file_was_deleted_is_no_part_of_the_next_one(self, path: Path, tmp_path: Path) -> None:
        with new_store(path) as store:
            store.record([entry for number in range(30) for entry in samples.history(number)], samples.spent_after(30))
            shutil.copy(f"{path}-wal", tmp_path / "log")
        path.unlink()
        shutil.move(tmp_path / "log", f"{path}-wal")
        with new_store(path) as store:
            assert list(store.journal()) == []
            assert store.spent == Spent()

    def test_a_store_that_was_taken_away_under_its_run_is_not_written_any_more(self, path: Path, tmp_path: Path) -> None:
        with new_store(path) as store:
            store.record(samples.history(0), samples.spent_after(1))
            path.rename(tmp_path / "moved.sqlite")
            for _ in range(2):
                with pytest.raises(StoreError, match=r"run\.sqlite: deleted, moved or replaced while a run wrote it"):
                    store.record(samples.history(1), samples.spent_after(2))
                path.write_text("another file")
            (tmp_path / "moved.sqlite").replace(path)
            store.record(samples.history(2), samples.spent_after(2))
        with open_store(str(path)) as reader:
            assert [entry for _, entry in reader.journal()] == samples.history(0) + samples.history(2)

    def test_the_refusal_names_the_owner(self, path: Path) -> None:
        with new_store(path), pytest.raises(StoreInUseError, match=rf"process {os.getpid()} on .* since 20"):
            open_store(str(path), write=True)

    def test_a_second_creation_meets_the_owner(self, path: Path) -> None:
        with new_store(path), pytest.raises(StoreInUseError):
            new_store(path)

    def test_a_symbolic_link_is_the_same_store(self, path: Path, tmp_path: Path) -> None:
        link = tmp_path / "link.sqlite"
        link.symlink_to(path)
        with new_store(path), pytest.raises(StoreInUseError):
            open_store(str(link), write=True)

    def test_a_forked_child_neither_owns_nor_keeps_the_store(self, path: Path) -> None:
        new_store(path).close()
        ran = in_another_process(_FORK_AND_DIE, str(path))
        child, refused = ran.stdout.split()
        try:
            assert refused == "StoreError", ran.stderr
            open_store(str(path), write=True).close()  # while the child lives
            os.kill(int(child), 0)
        finally:
            os.kill(int(child), 9)

    def test_an_sql_shell_with_a_lock_is_reported(self, path: Path) -> None:
        new_store(path).close()
        shell = sqlite3.connect(path, isolation_level=None)
        shell.execute("BEGIN IMMEDIATE")
        engine = writing_engine(path, busy_timeout_s=0.1)
        with pytest.raises(StoreInUseError, match="another program"), clear_errors(path), engine.begin():
            pass
        shell.close()
        engine.dispose()

    def test_a_creation_that_is_killed_leaves_a_whole_store_or_none(self, path: Path) -> None:
        for _ in range(4):
            with subprocess.Popen(
                [sys.executable, "-c", _CREATE, str(path)], env=child_environment(), stdout=subprocess.PIPE, text=True
            ) as maker:
                assert maker.stdout is not None
                maker.stdout.readline()
                draft = path.with_name(f".{path.name}.triton-evolve-draft")
                while not draft.exists() and maker.poll() is None and not path.exists():
                    pass
                maker.kill()
            if path.exists():
                with open_store(str(path)) as store:
                    assert store.header == samples.HEADER
                path.unlink()
        new_store(path).close()


_FORK_AND_DIE = """
import os, signal, sys, time
from evo.errors import StoreError
from evo.records import Spent
from population_store.opening import open_store
store = open_store(sys.argv[1], write=True)
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    try:
        store.record([], Spent())
    except StoreError as error:
        os.write(writing, type(error).__name__.encode())
    os.close(writing)
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    time.sleep(600)
    os._exit(0)
os.close(writing)
print(child, os.read(reading, 100).decode(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

_CREATE = """
import sys
from population_store.contract import samples
from population_store.opening import open_store
import population_store.sqlite
print("creating", flush=True)
open_store(sys.argv[1], header=samples.HEADER)
"""
