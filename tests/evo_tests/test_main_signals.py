"""Ctrl-C and SIGTERM end every command with status 130, one line, and nothing left of what it started; a byte order mark is read over."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.evo_tests.running_processes import ROOT, alive, descendants, started, titled, wait_until

pytestmark = pytest.mark.slow

KERNEL = ROOT / "evo" / "tasks" / "starts" / "softmax.py"
SANDBOX = "evo.tracing.forkserver"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_command_and_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    kernel = tmp_path / "endless.py"
    kernel.write_text(KERNEL.read_text() + "\nwhile True:\n    pass\n")
    with started(tmp_path, "trace", str(kernel), "--task", "softmax") as process:
        wait_until(lambda: len(titled(descendants(process.pid), SANDBOX)) > 2, "call in the sandbox")
        below = descendants(process.pid)
        process.send_signal(number)
        assert process.wait(120) == 130
    assert (tmp_path / "out.txt").read_text() == f"triton-evolve: interrupted by {number.name}\n"
    wait_until(lambda: not alive(below), "end of the sandbox", 60)
    wait_until(lambda: not list(scratch.iterdir()), "end of its files", 60)


def test_a_signal_while_an_evaluator_starts_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    with started(tmp_path, "tune", str(KERNEL), "--task", "softmax", "--device", "cpu") as process:
        wait_until(lambda: any(scratch.iterdir()), "folder of a sandbox")
        below = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    assert not alive(below)
    wait_until(lambda: not list(scratch.iterdir()), "end of its files", 60)


def test_a_signal_before_anything_began_is_told_too(tmp_path: Path) -> None:
    task = tmp_path / "slow.py"
    task.write_text(f"import time\nfrom pathlib import Path\nPath({str(tmp_path / 'here')!r}).touch()\ntime.sleep(60)\n")
    with started(tmp_path, "doctor", "--task", str(task)) as process:
        wait_until((tmp_path / "here").exists, "task")
        process.terminate()
        assert process.wait(120) == 130
    assert (tmp_path / "out.txt").read_text().endswith("triton-evolve: interrupted by SIGTERM\n")


def test_a_kernel_of_an_editor_that_writes_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    kernel = tmp_path / "marked.py"
    kernel.write_text(KERNEL.read_text(), encoding="utf-8-sig", newline="\r\n")
    with started(tmp_path, "trace", str(kernel), "--task", "softmax") as process:
        assert process.wait(120) == 0
    assert "launch" in (tmp_path / "out.txt").read_text()
