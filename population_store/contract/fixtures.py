"""What every part of the contract starts from: the fixtures, and a fresh interpreter beside this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from population_store.base import PopulationStore
from population_store.contract import samples
from population_store.opening import open_store

NewUrl = Callable[[], str]
"""Gives the URL of a store that does not exist yet, another one at every call."""


def child_environment() -> dict[str, str]:
    """The environment of another interpreter that shall find the same packages."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def in_another_process(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a fresh interpreter."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=60, check=False)


def sequence_of(store: PopulationStore) -> list[int]:
    """The sequence numbers of a journal."""
    return [seq for seq, _ in store.journal()]


class StoreFixtures:
    """Base of the parts; override `new_url`."""

    @pytest.fixture
    def new_url(self) -> NewUrl:
        """See `NewUrl`."""
        pytest.fail("override the fixture `new_url`")

    @pytest.fixture
    def url(self, new_url: NewUrl) -> str:
        """The URL of `store`."""
        return new_url()

    @pytest.fixture
    def store(self, url: str) -> Iterator[PopulationStore]:
        """A new store, owned by this process."""
        with open_store(url, write=True, header=samples.HEADER) as store:
            yield store
