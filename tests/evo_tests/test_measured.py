"""Facts about the machine come from the driver's own tool, which a broken device can keep from answering: that must stop nobody."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from evo.commands.measured import driver_says, measured_with


def tool(folder: Path, text: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("text", ["exec sleep 600", "echo no device; exit 9", "kill -9 $$"])
def test_a_driver_that_does_not_answer_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    tool(tmp_path, text)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    started = time.monotonic()
    assert driver_says("--query-gpu=name", timeout_s=0.3) == []
    assert time.monotonic() - started < 60, "it would sleep for ten minutes"


def test_a_tool_that_cannot_be_started_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_bytes(b"\x00 neither a program nor a script")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert driver_says("--query-gpu=name") == []


def test_what_the_driver_answers_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "echo Paper GPU")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert measured_with("abc", ["triton-evolve"])["gpu"] == "Paper GPU"
