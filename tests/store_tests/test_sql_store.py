"""What is the SQL store's own: files that are no stores, schema revisions, full and read-only disks, remains of killed processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.dialects import registry
from sqlalchemy.schema import CreateTable

from evo.errors import StoreError, StoreFullError, StoreVersionError
from evo.records import Spent
from population_store import schema
from population_store.base import PopulationStore, RunHeader
from population_store.contract import samples
from population_store.contract.fixtures import child_environment
from population_store.opening import open_store
from population_store.sqlite import SqliteStore
from population_store.sqlite_file import writing_engine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.sqlite"


def new_store(path: Path) -> PopulationStore:
    return open_store(str(path), write=True, header=samples.HEADER)


def refusal(path: Path, *, write: bool = False) -> str:
    with pytest.raises(StoreError) as caught:
        open_store(str(path), write=write)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert type(caught.value) is StoreVersionError
    return message


class TestForeignFiles:
    @pytest.mark.parametrize("write", [False, True])
    @pytest.mark.parametrize("content", [b"", b"softmax: 1\n", b"\x7fELF" * 4000], ids=["empty", "text", "binary"])
    def test_a_file_that_is_no_store_is_named_and_left_alone(self, path: Path, content: bytes, write: bool) -> None:
        path.write_bytes(content)
        assert "not a population store" in refusal(path, write=write)
        assert path.read_bytes() == content
        assert os.listdir(path.parent) == [path.name]

    @pytest.mark.parametrize("write", [False, True])
    def test_a_database_of_something_else_is_left_alone(self, path: Path, write: bool) -> None:
        with sqlite3.connect(path) as foreign:
            foreign.execute("CREATE TABLE alembic_version (version_num TEXT)")
            foreign.execute("CREATE TABLE run (id INTEGER)")
        foreign.close()
        before = path.read_bytes()
        assert "not a population store" in refusal(path, write=write)
        assert path.read_bytes() == before

    def test_a_directory_is_refused(self, tmp_path: Path) -> None:
        for header in (None, samples.HEADER):
            with pytest.raises(StoreError, match="directory"):
                open_store(str(tmp_path), header=header)

    def test_a_damaged_store_says_so(self, path: Path) -> None:
        with new_store(path) as store:
            store.record([entry for number in range(50) for entry in samples.history(number)], Spent())
        data = bytearray(path.read_bytes())
        data[4096:] = b"\xff" * (len(data) - 4096)
        path.write_bytes(data)
        with pytest.raises(StoreError, match="damaged"), open_store(str(path)) as store:
            list(store.journal())

    @pytest.mark.parametrize("value", ["CAST(x'7b22ff' AS TEXT)", "'{\"'"])
    def test_damage_within_a_text_says_so_too(self, path: Path, value: str) -> None:
        with new_store(path) as store:
            store.record(samples.history(0), Spent())
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"UPDATE requests SET parents = {value}")
            connection.execute(f"UPDATE evaluations SET record = {value}")
            connection.commit()
        with open_store(str(path)) as store, pytest.raises(StoreError, match="damaged"):
            list(store.journal())


class TestSchema:
    @pytest.mark.parametrize("write", [False, True])
    def test_a_newer_schema_is_refused(self, path: Path, write: bool) -> None:
        new_store(path).close()
        with sqlite3.connect(path) as newer:
            newer.execute(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
        newer.close()
        message = refusal(path, write=write)
        assert "9999" in message
        assert "install a newer version" in message

    def test_migrations_make_the_tables_that_the_code_expects(self, path: Path) -> None:
        new_store(path).close()
        engine = create_engine(f"sqlite:///{path}")
        options = {"version_table": schema.VERSION_TABLE, "compare_type": True}
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection, opts=options), schema.metadata) == []
        engine.dispose()

    def test_a_store_of_the_first_schema_goes_on_with_all_it_holds(self, path: Path) -> None:
        with new_store(path) as store:
            store.record(samples.history(0), samples.spent_after(1))
            expected, spent = list(store.journal()), store.spent
        with sqlite3.connect(path) as older:
            for table in ("tried", "snapshots"):
                older.execute(f"DROP TABLE {table}")
            older.execute("ALTER TABLE requests DROP COLUMN model")
            for column in ("tokens", "held_dollars", "held_tokens"):
                older.execute(f"ALTER TABLE spent DROP COLUMN {column}")
            older.execute(f"UPDATE {schema.VERSION_TABLE} SET version_num = '0001'")
        older.close()
        assert "open it for writing once" in refusal(path, write=False)
        with open_store(str(path), write=True) as store:
            assert (list(store.journal()), store.spent) == (expected, spent)
            store.record(samples.history(1), samples.spent_after(2))

    def test_the_known_revisions_are_those_shipped(self) -> None:
        config = Config()
        config.set_main_option("script_location", "population_store:migrations")
        shipped = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
        assert tuple(reversed(shipped)) == schema.REVISIONS

    def test_every_table_can_be_made_in_postgresql(self) -> None:
        dialect = registry.load("postgresql")()
        for table in schema.metadata.sorted_tables:
            statement = str(CreateTable(table).compile(dialect=dialect))
            assert "BIGINT" in statement or table is schema.run or table is schema.variants
            assert "WITHOUT ROWID" not in statement


class TestFullDisk:
    def test_a_full_disk_loses_one_batch_and_no_more(self, path: Path) -> None:
        new_store(path).close()
        pages = [60]

        def shrink(connection: sqlite3.Connection, record: object) -> None:
            connection.execute(f"PRAGMA max_page_count = {pages[0]}")

        event.listen(Engine, "connect", shrink)
        try:
            with open_store(str(path), write=True) as store:
                recorded = record_until_full(store)
                assert recorded > 5
                assert len(list(store.journal())) == 3 * recorded
                assert store.spent == samples.spent_after(recorded)
            pages[0] = 10_000
            with open_store(str(path), write=True) as store:
                assert store.record(samples.history(recorded), Spent()) == (True, True, True)
        finally:
            event.remove(Engine, "connect", shrink)

    def test_a_disk_that_really_is_full(self, tmp_path: Path) -> None:
        assert on_mounted(tmp_path, "mount -t tmpfs -o size=600k none {}", _FILL_DISK) == "full\nwhole\nresumed\n"

    def test_no_room_for_a_new_store_leaves_nothing_of_it(self, tmp_path: Path) -> None:
        assert on_mounted(tmp_path, "mount -t tmpfs -o size=40k none {}", _CREATE_AND_LIST) == "StoreFullError []\n"

    def test_a_file_where_a_directory_should_be(self, path: Path) -> None:
        path.write_text("")
        with pytest.raises(StoreError, match=str(path)):
            open_store(str(path / "run.sqlite"), header=samples.HEADER)


def record_until_full(store: PopulationStore) -> int:
    for number in range(1000):
        try:
            store.record(samples.history(number), samples.spent_after(number + 1))
        except StoreFullError:
            return number
    pytest.fail("the disk never was full")


def on_mounted(tmp_path: Path, mount: str, code: str) -> str:
    """What the code prints, run beside a directory mounted by `mount` in a namespace of its own."""
    directory = tmp_path / "disk"
    directory.mkdir(exist_ok=True)
    mounting = mount.format(*[directory] * 3)
    if subprocess.run(["unshare", "-rm", "sh", "-c", mounting], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets ordinary users mount nothing")
    command = ["unshare", "-rm", "sh", "-c", f'{mounting} && exec "$0" -c "$1" {directory}/run.sqlite', sys.executable, code]
    ran = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


_CREATE_AND_LIST = """
import os, sys
from evo.errors import StoreError
from population_store.contract import samples
from population_store.opening import open_store
try:
    open_store(sys.argv[1], header=samples.HEADER)
except StoreError as error:
    print(type(error).__name__, os.listdir(os.path.dirname(sys.argv[1])))
"""

_FILL_DISK = """
import os, sys
from pathlib import Path
from typing import Any
from evo.errors import StoreFullError
from evo.records import Spent
from population_store.contract import samples
from population_store.opening import open_store
path = Path(sys.argv[1])
recorded = 0
store = open_store(str(path), write=True, header=samples.HEADER)
ballast = path.with_name("ballast")
ballast.write_bytes(bytes(100_000))
try:
    while True:
        store.record(samples.history(recorded), samples.spent_after(recorded + 1))
        recorded += 1
except StoreFullError:
    print("full")
assert recorded > 0
if len(list(store.journal())) == 3 * recorded and store.spent == samples.spent_after(recorded):
    print("whole")
ballast.unlink()
if all(store.record(samples.history(recorded), Spent())):
    print("resumed")
"""


class TestReadOnly:
    @pytest.mark.parametrize("header", [None, samples.HEADER])
    def test_a_place_one_may_not_write_to(self, header: RunHeader | None) -> None:
        with pytest.raises(StoreError) as caught:
            open_store("/proc/self/run.sqlite", write=True, header=header)
        assert str(caught.value).startswith("/proc/")

    def test_a_store_on_a_read_only_disk_is_read_and_not_owned(self, tmp_path: Path) -> None:
        with new_store(tmp_path / "disk" / "run.sqlite") as store:
            store.record(samples.history(0), Spent())
        said = on_mounted(tmp_path, "mount --bind {} {} && mount -o remount,bind,ro {}", _READ_THEN_WRITE)
        assert said.startswith("3\nStoreError ")
        assert "Read-only file system" in said


_READ_THEN_WRITE = """
import sys
from evo.errors import StoreError
from population_store.opening import open_store
with open_store(sys.argv[1]) as store:
    print(len(list(store.journal())))
try:
    open_store(sys.argv[1], write=True)
except StoreError as error:
    print(type(error).__name__, error)
"""


class TestQueries:
    def test_status_and_ranking_read_no_whole_table(self, path: Path) -> None:
        asked: list[tuple[str, tuple[str | int, ...]]] = []

        def watch(*call: Any) -> None:
            asked.append((call[2], call[3]))

        with new_store(path) as store:
            store.record([entry for number in range(20) for entry in samples.history(number)], Spent())
            event.listen(Engine, "before_cursor_execute", watch)
            try:
                store.ranking("softmax", limit=5)
                store.counts()
                store.verified("softmax")
                store.is_known("x", 40)
                store.variant("x")
                next(store.journal(after=40))
            finally:
                event.remove(Engine, "before_cursor_execute", watch)
        assert len(asked) > 10
        scanned = set()
        with sqlite3.connect(path) as shell:
            for statement, parameters in asked:
                if statement.startswith("SELECT"):
                    plan = shell.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
                    scanned |= {detail for *_, detail in plan if detail.startswith("SCAN")}
        shell.close()
        assert scanned <= {"SCAN spent", "SCAN requests USING COVERING INDEX ix_requests_task_state"}


class TestSettings:
    def test_a_commit_reaches_the_disk_and_readers_do_not_wait(self, path: Path) -> None:
        engine = writing_engine(path)
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 1
        engine.dispose()

    def test_a_closed_store_is_one_file_that_can_be_copied(self, path: Path, tmp_path: Path) -> None:
        with new_store(path) as store:
            store.record(samples.history(0), Spent())
        assert os.listdir(path.parent) == [path.name]
        copy = tmp_path / "copy.sqlite"
        shutil.copy(path, copy)
        with open_store(str(copy)) as store:
            assert [entry for _, entry in store.journal()] == samples.history(0)

    def test_directories_above_a_new_store_are_made(self, tmp_path: Path) -> None:
        path = tmp_path / "a" / "b" / "run.sqlite"
        new_store(path).close()
        assert isinstance(open_store(str(path)), SqliteStore)
