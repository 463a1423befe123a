"""Going on with a run by its file, when whoever ran it before may not be quite dead."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from evo.commands import continuing
from evo.commands.continuing import wait_for_owner
from evo.errors import StoreInUseError
from population_store.base import RunHeader
from population_store.opening import open_store

HEADER = RunHeader("mine", 0, "{}", "{}", "{}", "2026-01-01T00:00:00+00:00")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(continuing, "LOOK_S", 0.02)
    return str(tmp_path / "run.sqlite")


def test_the_store_of_a_run_that_is_ending_is_waited_for(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    owner = open_store(store, header=HEADER)
    threading.Timer(0.2, owner.close).start()
    wait_for_owner(store, 30.0)
    assert capsys.readouterr().out.count("in use by process") == 1
    open_store(store, write=True).close()


def test_the_store_of_a_run_that_lives_is_refused_in_the_end(store: str) -> None:
    with open_store(store, header=HEADER), pytest.raises(StoreInUseError, match="in use by process"):
        wait_for_owner(store, 0.1)
