"""Servers forked from one warm process are as good as servers started one by one, and none outlives its owner."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from evo.errors import SandboxError, WorkerDied
from evo.tracing.sandbox import ForkServer, Limits
from evo.tracing.zygote import Zygote
from tests.evo_tests.running_processes import descendants, kill, titled, wait_until

CHILDREN = "tests.evo_tests.sandbox_children"


@pytest.fixture
def zygote() -> Iterator[Zygote]:
    zygote = Zygote("test")
    yield zygote
    zygote.close()


def server_of(zygote: Zygote, *preload: str) -> ForkServer:
    return ForkServer("test", Limits(), preload=preload, zygote=zygote)


def environment(server: ForkServer) -> dict[str, object]:
    return server.call(f"{CHILDREN}:environment", {}, deadline_s=10)


def home(server: ForkServer) -> Path:
    """Of the server; each of its calls has a folder in it."""
    return Path(str(environment(server)["HOME"])).parent


def test_each_server_is_its_own(zygote: Zygote) -> None:
    one, other = server_of(zygote, "decimal"), server_of(zygote, "decimal")
    try:
        assert home(one) == home(one) != home(other)
        with pytest.raises(WorkerDied, match="signal 11"):
            one.call(f"{CHILDREN}:crash", {}, deadline_s=10)
        assert "HOME" in environment(other)
        one.close()
        assert "HOME" in environment(other)
        assert "HOME" in environment(one)  # a closed server is started again by its next call
    finally:
        one.close()
        other.close()


def test_secrets_of_the_caller_reach_no_server(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_API_KEY", "sk-canary")
    server = server_of(zygote)
    try:
        assert "CANARY_API_KEY" not in environment(server)
    finally:
        server.close()


def test_a_server_whose_zygote_was_killed_is_started_by_another(zygote: Zygote) -> None:
    server = server_of(zygote)
    try:
        before = home(server)
        for pid in titled(descendants(os.getpid()), "evo.tracing.zygote"):
            kill(pid)
        after = before
        while after == before:  # a call may have been under way
            with contextlib.suppress(WorkerDied):
                after = home(server)
        assert after.exists()
    finally:
        server.close()


def test_servers_end_with_their_zygote_and_none_is_started_any_more(zygote: Zygote) -> None:
    server = server_of(zygote)
    try:
        folder = home(server)
        zygote.close()
        server.close()
        assert not folder.exists()
        with pytest.raises(SandboxError):
            server.start()
    finally:
        server.close()


def test_what_cannot_be_imported_is_said(zygote: Zygote) -> None:
    with pytest.raises(SandboxError, match="test sandbox does not start"):
        server_of(zygote, "no_such_module").start()


def test_nothing_is_left_of_a_caller_that_was_killed() -> None:
    program = (
        "import sys; from evo.tracing.sandbox import ForkServer, Limits; from evo.tracing.zygote import Zygote; zygote = Zygote('test')\n"
        "servers = [ForkServer('test', Limits(), zygote=zygote) for _ in range(2)]\n"
        "for server in servers: server.start()\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    with tempfile.TemporaryDirectory() as folder:
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": folder}
        ) as caller:
            assert caller.stdout is not None
            assert caller.stdout.readline() == b"ready\n"
            assert len(list(Path(folder).iterdir())) == 3
            caller.kill()
        wait_until(lambda: not list(Path(folder).iterdir()), "end of its files", 60)
