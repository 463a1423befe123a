"""`open_store` chooses the backend by the URL."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evo.errors import StoreError
from population_store.contract import samples
from population_store.contract.fixtures import child_environment, in_another_process
from population_store.opening import open_store


@pytest.mark.parametrize(
    "form", ["run.sqlite", "./run.sqlite", "sqlite:///run.sqlite", "sqlite+pysqlite:///run.sqlite", "{}", "sqlite:///{}"]
)
def test_all_spellings_of_one_file_are_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store(form.format(tmp_path / "run.sqlite"), header=samples.HEADER):
        assert (tmp_path / "run.sqlite").is_file()
    with open_store("run.sqlite") as store:
        assert store.header == samples.HEADER


def test_stores_may_be_made_in_several_threads_at_a_time(tmp_path: Path) -> None:
    """Alembic's state is of its modules, and one thread's migration ran on another's store."""

    def make(number: int) -> int:
        for turn in range(2):
            with open_store(str(tmp_path / f"{number}_{turn}.sqlite"), header=samples.HEADER) as store:
                assert store.header == samples.HEADER
        return number

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(make, range(4))) == list(range(4))


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    open_store("~/run.sqlite", header=samples.HEADER).close()
    assert os.listdir(tmp_path) == ["run.sqlite"]


@pytest.mark.parametrize(
    "url",
    [
        "mysql://host/db",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/run.sqlite",
        "sqlite:///run.sqlite?mode=ro",
        "",
    ],
)
def test_a_url_that_no_backend_takes_says_what_is_allowed(url: str) -> None:
    with pytest.raises(StoreError, match=r"allowed: path/to/file\.sqlite, sqlite:///"):
        open_store(url, header=samples.HEADER)


def test_an_installed_backend_is_found_by_its_scheme(tmp_path: Path) -> None:
    (tmp_path / "their_store.py").write_text(
        "from population_store.sqlite import SqliteStore\n"
        "class TheirStore(SqliteStore):\n"
        "    @classmethod\n"
        "    def open(cls, url, **options):\n"
        "        return super().open(url.removeprefix('theirs://'), **options)\n"
    )
    metadata = tmp_path / "their_store-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-store\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[triton_evolve.stores]\ntheirs = their_store:TheirStore\n")
    code = (
        "import sys; from population_store.opening import open_store; from population_store.contract import samples\n"
        "print(type(open_store(sys.argv[1], header=samples.HEADER)).__name__)"
    )
    environment = child_environment()
    environment["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    command = [sys.executable, "-c", code, f"theirs://{tmp_path}/run.sqlite"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout == "TheirStore\n", ran.stderr


def test_importing_the_package_and_its_contract_of_stores_is_cheap() -> None:
    code = "import sys, population_store, population_store.base, population_store.opening; print('sqlalchemy' in sys.modules)"
    assert in_another_process(code).stdout == "False\n"
