"""What a sandboxed child can and cannot do, with real processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evo.errors import WorkerDied
from evo.tracing.sandbox import ForkServer, Limits, abilities

LIMITS = Limits(memory_bytes=1 << 30, cpu_s=20, file_bytes=1 << 20, max_reply_bytes=1 << 20)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    os.environ["CANARY_API_KEY"] = "sk-canary"
    server = ForkServer("test", LIMITS)
    yield server
    server.close()
    del os.environ["CANARY_API_KEY"]


def call(server: ForkServer, name: str, deadline_s: float = 10, **request: object) -> dict[str, object]:
    return server.call(f"tests.evo_tests.sandbox_children:{name}", request, deadline_s=deadline_s)


def test_answers_come_back(server: ForkServer) -> None:
    assert call(server, "echo", text="über") == {"text": "über"}


def test_secrets_of_the_caller_are_not_in_the_environment(server: ForkServer) -> None:
    assert "CANARY_API_KEY" not in call(server, "environment")


def test_a_hang_ends_at_the_deadline_and_the_server_lives_on(server: ForkServer) -> None:
    started = time.monotonic()
    with pytest.raises(WorkerDied, match="deadline"):
        call(server, "hang", deadline_s=0.5)
    assert time.monotonic() - started < 5
    assert call(server, "echo", text="next") == {"text": "next"}


@pytest.mark.parametrize(("name", "reason"), [("exit_early", "exit 0"), ("crash", "signal 11"), ("talk", "output too large")])
def test_a_bad_end_is_told(server: ForkServer, name: str, reason: str) -> None:
    with pytest.raises(WorkerDied, match=reason):
        call(server, name)
    assert call(server, "echo", text="next") == {"text": "next"}


def named(name: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text().strip() == name and "Z" not in (path.parent / "stat").read_text().rpartition(")")[2]:
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize("function", ["leave_a_process", "leave_a_daemon"])
@pytest.mark.parametrize("for_s", [0.7, 60.0])
def test_what_a_child_starts_dies_with_it(server: ForkServer, function: str, for_s: float) -> None:
    """Be it that the child answers or that it is killed."""
    name = f"stray-{secrets.token_hex(4)}"
    with ThreadPoolExecutor(1) as thread:
        call_ = thread.submit(call, server, function, deadline_s=1.5, comm=name, for_s=for_s)
        deadline = time.monotonic() + 5
        while not named(name) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert named(name)
        assert isinstance(call_.exception(), WorkerDied if for_s > 1 else type(None))
    assert not named(name)


def test_nothing_is_left_of_a_caller_that_was_killed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = (
            "import sys; from evo.tracing.sandbox import ForkServer, Limits; server = ForkServer('test', Limits()); server.start();"
            "print('ready', flush=True); sys.stdin.read()"
        )
        environment = {**os.environ, "TMPDIR": folder}
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        ) as caller:
            assert caller.stdout is not None
            assert caller.stdout.readline() == b"ready\n"
            assert len(list(Path(folder).iterdir())) == 1
            caller.kill()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and list(Path(folder).iterdir()):
            time.sleep(0.05)
        assert not list(Path(folder).iterdir())


def test_memory_and_files_are_limited(server: ForkServer) -> None:
    assert call(server, "allocate", nbytes=4 << 30)["error"] == "MemoryError"
    assert call(server, "write_file", nbytes=4 << 20)["error"] == "OSError"


def test_the_network_leads_nowhere(server: ForkServer) -> None:
    if not abilities()["own network namespace"]:
        pytest.skip("this machine refuses network namespaces")
    assert call(server, "interfaces") == {"up": []}


def test_children_do_not_see_each_other_s_files(server: ForkServer) -> None:
    first = call(server, "working_folder")["path"]
    assert call(server, "working_folder")["path"] != first
    assert not Path(str(first)).exists()
