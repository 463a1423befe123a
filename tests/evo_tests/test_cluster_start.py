"""A run that is stopped while Ray starts says so and leaves no process behind."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.evo_tests.running_processes import alive, descendants, started, titled, wait_until


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sign", ["gcs_server", "ray::DashboardAgent"])
def test_a_signal_while_ray_starts_leaves_no_process(
    tmp_path: Path, simulated_file: Callable[..., Path], number: signal.Signals, sign: str
) -> None:
    config = simulated_file(evaluations=100_000)
    with started(tmp_path, "run", str(config), "--no-export") as driver:
        wait_until(lambda: bool(titled(descendants(driver.pid), sign)) or driver.poll() is not None, sign)
        below = descendants(driver.pid)
        driver.send_signal(number)
        status = driver.wait(timeout=120)
        wait_until(lambda: not alive(below), "end of what Ray had started", 60)
    said = (tmp_path / "out.txt").read_text()
    assert status == 130, said
    assert f"interrupted by {number.name}" in said
    assert "Traceback" not in said


def test_a_ray_that_does_not_start_is_told_in_one_line(
    tmp_path: Path, simulated_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full").touch()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "full"))  # no folder can be made there
    with started(tmp_path, "run", str(simulated_file(evaluations=3)), "--no-export") as driver:
        assert driver.wait(timeout=120) == 1
    said = (tmp_path / "out.txt").read_text()
    assert said.startswith("triton-evolve: Ray does not start; ")
    assert f"{tmp_path / 'full'}" in said
    assert len(said.splitlines()) == 1
