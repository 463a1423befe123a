"""A store of every released schema opens with all it holds, in both databases, and goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, MetaData, create_engine, insert, inspect, select

from evo.errors import StoreVersionError
from population_store import schema
from population_store.base import Entry
from population_store.contract import samples
from population_store.opening import open_store
from population_store.sql import SqlStore
from tests.store_tests.postgresql_service import Service

OLDER = schema.REVISIONS[:-1]


def make_older(new: Engine, old: Engine, revision: str) -> None:
    """Fills an empty database as a version of that revision would have: its own tables, made by its own migrations, with what they hold
    of a store of today."""
    config = Config()
    config.set_main_option("script_location", "population_store:migrations")
    with new.connect() as source, old.begin() as target:
        config.attributes["connection"] = target
        command.upgrade(config, revision)
        tables = MetaData()
        tables.reflect(target)
        for table in tables.sorted_tables:
            if table.name != schema.VERSION_TABLE:
                _copy(source, target, table.name, tables)


def _copy(source: Connection, target: Connection, name: str, tables: MetaData) -> None:
    table = tables.tables[name]
    today = MetaData()
    today.reflect(source, only=[name])
    kept = [column.name for column in table.columns]
    rows = source.execute(select(*[today.tables[name].c[column] for column in kept])).mappings().all()
    if rows:
        target.execute(insert(table), [dict(row) for row in rows])


@pytest.fixture(params=["sqlite", "postgresql"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], tuple[str, Engine]]:
    """Name → the URL of a store there, and an engine for that place."""
    if request.param == "sqlite":
        return lambda name: (str(tmp_path / f"{name}.sqlite"), create_engine(f"sqlite:///{tmp_path / name}.sqlite"))
    service: Service = request.getfixturevalue("postgresql")

    def place(name: str) -> tuple[str, Engine]:
        own = f"{name}_{tmp_path.name[-40:].lower().strip('_')}".replace("-", "_")[:60]
        service.sql(f"CREATE SCHEMA IF NOT EXISTS {own}")
        return service.url(schema=own), create_engine(service.url(), connect_args={"options": f"-c search_path={own}"})

    return place


@pytest.mark.parametrize("revision", OLDER)
def test_a_store_of_every_released_schema_goes_on(places: Callable[[str], tuple[str, Engine]], revision: str) -> None:
    entries: list[Entry] = [*samples.history(0), samples.event(0), samples.request(1), samples.no_proposal(1)]
    (new_url, new), (old_url, old) = places("new"), places("old")
    with open_store(new_url, header=samples.HEADER) as store:
        store.record(entries, samples.spent_after(2))
    make_older(new, old, revision)

    with pytest.raises(StoreVersionError, match="open it for writing once"):
        open_store(old_url)
    with open_store(old_url, write=True) as store:
        assert isinstance(store, SqlStore)
        assert (store.header, store.spent) == (samples.HEADER, samples.spent_after(2))
        assert [entry for _, entry in store.journal()] == entries
        assert len(store.ranking("softmax")) == 1
        assert all(store.record([samples.tried(0, 0), *samples.history(2)], samples.spent_after(3)))
    with new.connect() as today, old.connect() as migrated:
        assert set(inspect(migrated).get_table_names()) == set(inspect(today).get_table_names())
    new.dispose()
    old.dispose()
