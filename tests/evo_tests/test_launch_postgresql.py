"""A search keeps its store in PostgreSQL, is gone on with there, copied home, and gone on with here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from evo.main import main
from population_store.opening import open_store
from tests.store_tests.postgresql_service import running_service


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_search_in_postgresql_goes_on_and_comes_home(
    simulated_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def given(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        return capsys.readouterr().out

    with running_service() as service:
        if service is None:
            pytest.skip("PostgreSQL is not installed; on Debian: apt-get install postgresql")
        file, there, home = str(simulated_file(evaluations=20)), service.url(schema="search"), str(tmp_path / "home.sqlite")
        run = ("run", file, "--continue", "--store", there)
        assert "starting simulated" in given(*run)
        assert "resuming simulated" in given(*run, "--evaluations", "30")
        assert "30/30 evaluations" in given("status", there)
        assert f"to {home}, and found them equal" in given("store", "copy", there, home)
        with open_store(there) as kept, open_store(home) as copied:
            assert list(kept.journal()) == list(copied.journal())
            assert (kept.spent, kept.counts(), kept.spent.evaluations) == (copied.spent, copied.counts(), 30)
        given("resume", home, "--evaluations", "35")
        with open_store(home) as store:
            assert store.spent.evaluations == 35
