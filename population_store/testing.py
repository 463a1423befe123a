"""`StoreContract`: the tests that every population store passes. A backend subclasses it and says where a new store may lie.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def new_url(self, tmp_path):
            numbers = itertools.count()
            return lambda: f"my://{tmp_path}/{next(numbers)}"

Needs pytest and hypothesis. Stores are opened by `population_store.opening.open_store`, here and in other processes, so the
backend has to be installed or built in. ``pytest.register_assert_rewrite("population_store.contract")`` in a conftest, before anything
imports it, makes failures say more.
"""

from __future__ import annotations

from population_store.contract.fixtures import NewUrl
from population_store.contract.opening import OpeningContract
from population_store.contract.ownership import OwnershipContract
from population_store.contract.queries import QueryContract
from population_store.contract.recording import RecordingContract

__all__ = ["NewUrl", "StoreContract"]


class StoreContract(OpeningContract, RecordingContract, QueryContract, OwnershipContract):
    """Subclass it under a name that begins with ``Test`` and override the fixture `new_url`."""
