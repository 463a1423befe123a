"""What is the PostgreSQL store's own: places and passwords, servers that are not there or go away, many runs on one server, schemas."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text

from evo.errors import StoreError, StoreFullError, StoreInUseError, StoreVersionError
from evo.records import Spent
from population_store import schema
from population_store.contract import samples
from population_store.contract.fixtures import child_environment
from population_store.opening import open_store, store_exists
from population_store.postgresql_server import clear_errors, place_of
from tests.store_tests.postgresql_service import Service


class TestPlaces:
    @pytest.mark.parametrize("url", ["postgresql://u:sesame@h/d", "postgresql+psycopg://u@h/d?password=sesame"])
    def test_a_password_in_a_url_is_refused_and_not_repeated(self, url: str) -> None:
        with pytest.raises(StoreError, match="pgpass") as caught:
            open_store(url)
        assert "sesame" not in str(caught.value)

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("postgresql://h", "database"),
            ("postgresql+asyncpg://h/d", r"postgresql\+psycopg://"),
            ("postgresql://h/d?schema=pg_x", "schema"),
            ("postgresql://h/d?schema=A", "schema"),
            ('postgresql://h/d?schema=a"b', "schema"),
            ("postgresql://h:port/d", "allowed"),
        ],
    )
    def test_a_url_that_names_no_place_says_what_is_allowed(self, url: str, words: str) -> None:
        with pytest.raises(StoreError, match=words) as caught:
            open_store(url)
        assert "\n" not in str(caught.value)

    def test_a_server_that_is_not_there_is_told_in_one_line(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="no connection to the server") as caught:
            open_store(f"postgresql://u@/d?host={tmp_path}")
        assert "\n" not in str(caught.value)

    def test_a_database_that_is_not_there(self, postgresql: Service) -> None:
        with pytest.raises(StoreError, match=r"does not exist.*that the database exists"):
            open_store(postgresql.url("nowhere"), header=samples.HEADER)

    def test_who_may_not_write_is_told_so(self, postgresql: Service) -> None:
        postgresql.sql("CREATE ROLE reader LOGIN")
        url = postgresql.url(schema="forbidden").replace("postgres@", "reader@")
        with pytest.raises(StoreError, match="permission denied"):
            open_store(url, header=samples.HEADER)
        assert not store_exists(postgresql.url(schema="forbidden"))

    def test_a_schema_of_something_else_is_left_alone(self, postgresql: Service) -> None:
        postgresql.sql("CREATE SCHEMA foreign_one; CREATE TABLE foreign_one.run (id integer)")
        for options in ({}, {"write": True}):
            with pytest.raises(StoreVersionError, match="not a population store"):
                open_store(postgresql.url(schema="foreign_one"), **options)
        with pytest.raises(StoreError, match="exists already"):
            open_store(postgresql.url(schema="foreign_one"), header=samples.HEADER)
        assert postgresql.sql("SELECT table_name FROM information_schema.tables WHERE table_schema = 'foreign_one'") == "run"

    def test_an_empty_schema_that_somebody_prepared_is_taken(self, postgresql: Service) -> None:
        postgresql.sql("CREATE SCHEMA prepared")
        assert not store_exists(postgresql.url(schema="prepared"))
        open_store(postgresql.url(schema="prepared"), header=samples.HEADER).close()
        assert store_exists(postgresql.url(schema="prepared"))


class TestServer:
    def test_many_runs_write_one_server_at_once(self, postgresql: Service) -> None:
        urls = [postgresql.url(schema=f"run_{number}") for number in range(2)]
        writers = []
        for url in urls:
            open_store(url, header=samples.HEADER).close()
            command = [sys.executable, "-c", _WRITE_TWENTY, url]
            writers.append(subprocess.Popen(command, env=child_environment(), stdout=subprocess.PIPE, text=True))
        assert [writer.communicate(timeout=120)[0] for writer in writers] == ["written\n"] * 2
        for url in urls:
            with open_store(url) as store:
                assert store.counts() == {"softmax": {"passed": 20}}

    def test_an_owner_that_lost_its_connection_writes_no_more_and_loses_nothing(self, postgresql: Service) -> None:
        url = postgresql.url(schema="restarted")
        with open_store(url, header=samples.HEADER) as store:
            store.record(samples.history(0), samples.spent_after(1))
            postgresql.restart()
            with pytest.raises(StoreError, match="no connection to the server"):
                store.record(samples.history(1), samples.spent_after(2))
            with open_store(url, write=True) as other:  # somebody else may own it by now
                other.record(samples.history(2), samples.spent_after(2))
                with pytest.raises(StoreError, match="the connection that owned it was lost"):
                    store.record(samples.history(3), samples.spent_after(3))
        with open_store(url) as reader:
            assert [entry for _, entry in reader.journal()] == samples.history(0) + samples.history(2)

    def test_a_question_on_a_connection_that_was_lost_is_told_as_such_and_the_next_one_is_answered(
        self, postgresql: Service
    ) -> None:
        with open_store(postgresql.url(schema="asked"), header=samples.HEADER) as store:
            store.record(samples.history(0), samples.spent_after(1))
            assert not store.is_known("nobody", 9)
            postgresql.restart()
            with pytest.raises(StoreError, match="no connection to the server"):
                store.is_known("nobody", 9)
            assert not store.is_known("nobody", 9)

    def test_a_frozen_owner_keeps_its_store(self, postgresql: Service) -> None:
        url = postgresql.url(schema="owned")
        with (
            open_store(url, header=samples.HEADER),
            pytest.raises(StoreInUseError, match=rf"process {os.getpid()} on .* since 20"),
        ):
            open_store(url, write=True)

    def test_a_server_that_takes_long_to_see_that_an_owner_was_killed_is_waited_for(
        self, postgresql: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = postgresql.url(schema="killed")
        open_store(url, header=samples.HEADER).close()
        monkeypatch.setattr("population_store.postgresql.UNKNOWN_S", 0.0)
        ended = subprocess.Popen(["true"])
        ended.wait()
        name = f"process {ended.pid} on {socket.gethostname()}"[:63]
        engine = create_engine(postgresql.url(), connect_args={"application_name": name})
        with engine.connect() as session:
            session.execute(text("SELECT pg_advisory_lock(:key)"), {"key": place_of(url).key})
            freed = threading.Timer(0.3, session.invalidate)
            freed.start()
            open_store(url, write=True).close()
            freed.join()
        engine.dispose()

    def test_a_reader_cannot_write(self, postgresql: Service) -> None:
        url = postgresql.url(schema="read")
        open_store(url, header=samples.HEADER).close()
        with open_store(url) as reader, pytest.raises(StoreError, match="does not own it"):
            reader.record([samples.event(0)], Spent())

    def test_a_full_disk_of_the_server_is_told_as_such(self, postgresql: Service) -> None:
        engine = create_engine(postgresql.url())
        raising = "DO $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END $$"
        with pytest.raises(StoreFullError, match="disk is full"), clear_errors("x"), engine.begin() as connection:
            connection.exec_driver_sql(raising)
        engine.dispose()


_WRITE_TWENTY = """
import sys
from population_store.contract import samples
from population_store.opening import open_store
with open_store(sys.argv[1], write=True) as store:
    for number in range(20):
        store.record(samples.history(number), samples.spent_after(number + 1))
print("written")
"""


class TestSchema:
    def test_migrations_make_the_tables_that_the_code_expects(self, postgresql: Service) -> None:
        open_store(postgresql.url(schema="migrated"), header=samples.HEADER).close()
        engine = create_engine(postgresql.url(), connect_args={"options": "-c search_path=migrated"})
        options = {"version_table": schema.VERSION_TABLE, "compare_type": True}
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection, opts=options), schema.metadata) == []
        engine.dispose()
