"""The SQL store keeps the contract of all stores in PostgreSQL too, on a real server."""

from __future__ import annotations

import itertools

import pytest

from population_store.testing import NewUrl, StoreContract
from tests.store_tests.postgresql_service import Service

_numbers = itertools.count()


class TestPostgresqlStore(StoreContract):
    kills = 2

    @pytest.fixture
    def new_url(self, postgresql: Service) -> NewUrl:
        return lambda: postgresql.url(schema=f"contract_{next(_numbers)}")
