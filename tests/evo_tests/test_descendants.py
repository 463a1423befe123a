"""Processes that end with whoever holds their standard input, however many are in between."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import time
from evo.descendants import end_with_caller
end_with_caller()
print("begun", flush=True)
time.sleep({})
"""


def test_a_process_ends_when_its_caller_lets_go_of_it() -> None:
    # A shell in between, as a profiler or a sanitizer would be.
    command = ["sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, PROGRAM.format(600)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"begun\n"
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(30) == 1
    process.stdout.close()


@pytest.mark.parametrize("stream", [subprocess.DEVNULL, subprocess.PIPE])
def test_a_process_without_such_a_caller_goes_on(stream: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(0.1){PROGRAM.format(0.05)}"], stdin=stream)
    if process.stdin is not None:
        process.stdin.close()
    assert process.wait(30) == 0
