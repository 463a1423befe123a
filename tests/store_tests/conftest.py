"""What tests of stores share: one PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store_tests.postgresql_service import Service, running_service


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Service]:
    """A server for all tests of this process; `.ci/run` installs it."""
    with running_service() as service:
        if service is None:
            pytest.skip("PostgreSQL is not installed; on Debian: apt-get install postgresql")
        yield service
