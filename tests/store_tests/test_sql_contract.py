"""The SQL store keeps the contract of all stores."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from population_store.testing import NewUrl, StoreContract


class TestSqlStore(StoreContract):
    @pytest.fixture
    def new_url(self, tmp_path: Path) -> NewUrl:
        numbers = itertools.count()
        return lambda: str(tmp_path / f"run {next(numbers)} %41.sqlite")
