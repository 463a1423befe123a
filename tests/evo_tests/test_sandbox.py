"""What a sandboxed child can and cannot do, with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import evo.records
from evo.errors import WorkerDied
from evo.tracing.places import needed
from evo.tracing.privileges import CAP_DAC_READ_SEARCH, NOBODY, others_can_reach
from evo.tracing.sandbox import ForkServer, Limits, abilities, search_path
from tests.evo_tests.running_processes import descendants, wait_until

LIMITS = Limits(memory_bytes=1 << 30, cpu_s=20, file_bytes=1 << 20, max_reply_bytes=1 << 20)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    os.environ["CANARY_API_KEY"] = "sk-canary"
    server = ForkServer("test", LIMITS)
    yield server
    server.close()
    del os.environ["CANARY_API_KEY"]


def call(server: ForkServer, name: str, deadline_s: float = 60, **request: object) -> dict[str, object]:
    return server.call(f"tests.evo_tests.sandbox_children:{name}", request, deadline_s=deadline_s)


def test_answers_come_back(server: ForkServer) -> None:
    assert call(server, "echo", text="über") == {"text": "über"}


def test_secrets_of_the_caller_are_not_in_the_environment(server: ForkServer) -> None:
    assert "CANARY_API_KEY" not in call(server, "environment")


def test_a_hang_ends_at_the_deadline_and_the_server_lives_on(server: ForkServer) -> None:
    started = time.monotonic()
    with pytest.raises(WorkerDied, match="deadline"):
        call(server, "hang", deadline_s=0.5)
    assert time.monotonic() - started < 60, "it would hang for ten minutes"
    assert call(server, "echo", text="next") == {"text": "next"}


@pytest.mark.parametrize(("name", "reason"), [("exit_early", "exit 0"), ("crash", "signal 11"), ("talk", "output too large")])
def test_a_bad_end_is_told(server: ForkServer, name: str, reason: str) -> None:
    with pytest.raises(WorkerDied, match=reason):
        call(server, name)
    assert call(server, "echo", text="next") == {"text": "next"}


def test_a_short_answer_of_many_parts_is_not_read() -> None:
    """Twenty megabytes of JSON, within what an answer may be long, would become many times that in objects, in the caller too."""
    server = ForkServer("test", Limits(), preload=("tests.evo_tests.sandbox_children",))
    try:
        with pytest.raises(WorkerDied, match="output too large"):
            call(server, "answer_in_many_parts")
        assert call(server, "echo", text="next") == {"text": "next"}
    finally:
        server.close()


def named(name: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text().strip() == name and "Z" not in (path.parent / "stat").read_text().rpartition(")")[2]:
                found.append(path.parent.name)
    return found


def seen(name: str) -> list[int]:
    """Processes of that name, once there is one."""
    found: list[int] = []
    wait_until(lambda: bool(found.extend(map(int, named(name))) or found), f"process {name}", 60)
    return found


@pytest.mark.parametrize("function", ["leave_a_process", "leave_a_daemon"])
@pytest.mark.parametrize("answers", [True, False])
def test_what_a_child_starts_dies_with_it(server: ForkServer, function: str, answers: bool) -> None:
    """Be it that the child answers or that it is killed."""
    name = f"stray-{secrets.token_hex(4)}"
    with ThreadPoolExecutor(1) as thread:
        call_ = thread.submit(call, server, function, deadline_s=60 if answers else 2, comm=name)
        (stray,) = seen(name)
        if answers:
            os.kill(stray, signal.SIGUSR1)
        assert isinstance(call_.exception(), type(None) if answers else WorkerDied)
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
        wait_until(lambda: not list(Path(folder).iterdir()), "end of its files", 60)


def test_memory_and_files_are_limited(server: ForkServer) -> None:
    assert call(server, "allocate", nbytes=4 << 30)["error"] == "MemoryError"
    assert call(server, "write_file", nbytes=4 << 20)["error"] == "OSError"


def test_limits_are_hard_and_no_core_is_dumped(server: ForkServer) -> None:
    found = call(server, "resources")
    expected = {"RLIMIT_CPU": 20, "RLIMIT_FSIZE": 1 << 20, "RLIMIT_NOFILE": 256, "RLIMIT_CORE": 0}
    expected |= {"RLIMIT_NPROC": 512} if abilities()["number of processes limited"] else {}
    assert {name: found[name] for name in expected} == {name: [value, value] for name, value in expected.items()}


def test_cpu_seconds_are_limited() -> None:
    server = ForkServer("test", Limits(cpu_s=1))
    try:
        with pytest.raises(WorkerDied, match="signal 9"):
            call(server, "spin", deadline_s=120)
    finally:
        server.close()


@pytest.fixture(scope="module")
def tight() -> Iterator[ForkServer]:
    server = ForkServer("test", Limits(memory_bytes=256 << 20, cpu_s=20, processes=48))
    yield server
    server.close()


def test_a_fork_bomb_is_bounded_and_ends_at_the_deadline(tight: ForkServer) -> None:
    tight.start()
    assert tight._process is not None
    with ThreadPoolExecutor(1) as thread:
        call_ = thread.submit(call, tight, "bomb", deadline_s=2)
        most = 0
        while not call_.done():
            most = max(most, len(descendants(tight._process.pid)))
            time.sleep(0.05)
        assert isinstance(call_.exception(), WorkerDied)
    assert 20 < most < 150
    assert call(tight, "echo", text="next") == {"text": "next"}


def test_memory_of_several_processes_is_limited_together(tight: ForkServer) -> None:
    with pytest.raises(WorkerDied, match="memory"):
        call(tight, "grow", processes=4, nbytes=100 << 20)
    assert call(tight, "echo", text="next") == {"text": "next"}


def test_processes_of_others_do_not_count(tight: ForkServer) -> None:
    """Another sandbox's children have the same user, yet their number is no concern of this one's."""
    if not abilities()["own user namespace"]:
        pytest.skip("this machine refuses user namespaces")
    other = ForkServer("test", Limits(cpu_s=20, processes=100))
    try:
        with ThreadPoolExecutor(1) as thread:
            bomb = thread.submit(call, other, "bomb", deadline_s=60)
            wait_until(
                lambda: other._process is not None and len(descendants(other._process.pid)) >= 90, "a bomb of its limit", 50
            )
            with pytest.raises(WorkerDied, match="memory"):  # and not: no process could be started
                call(tight, "grow", processes=4, nbytes=100 << 20)
            assert not bomb.done()
            other.close()
    finally:
        other.close()


def test_a_child_is_a_user_of_its_own_with_at_most_the_right_to_read(server: ForkServer) -> None:
    found = call(server, "identity")
    assert found["NoNewPrivs"] == 1
    assert found["Seccomp"] == 2
    if os.geteuid() != 0:
        assert (found["uid"], found["CapPrm"], found["CapEff"], found["CapAmb"]) == (os.geteuid(), 0, 0, 0)
        return
    reads = 0 if others_can_reach(needed()) else 1 << CAP_DAC_READ_SEARCH
    assert (found["uid"], found["groups"]) == (NOBODY, [])
    assert found["CapPrm"] == found["CapEff"] == found["CapAmb"] == found["CapInh"] == reads


def test_programs_that_a_child_starts_work_and_are_as_confined(server: ForkServer) -> None:
    found = call(server, "run_program")
    assert found["out"] == f"{NOBODY if os.geteuid() == 0 else os.geteuid()}\n"
    assert "PermissionError" in str(found["error"])


def test_a_child_opens_what_it_needs_and_nothing_else(server: ForkServer, tmp_path: Path) -> None:
    if not abilities()["files limited by Landlock or a root of its own"]:
        pytest.skip("this machine has no Landlock")
    tmp_path.chmod(0o777)
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o666)
    module = str(Path(evo.records.__file__))
    allowed = [
        [module, "r"],
        ["/usr", "list"],
        ["/proc/self/maps", "r"],
        ["/dev/null", "w"],
        ["/etc/passwd", "r"],
        [os.__file__, "r"],
    ]
    refused = [
        [str(secret), "r"],
        [str(tmp_path), "list"],
        [str(tmp_path / "new"), "w"],
        [str(Path.home()), "list"],
        ["/root", "list"],
    ]
    refused += [["/etc/shadow", "r"], ["/proc/self/oom_score_adj", "w"], ["/var", "list"], ["/dev/kmsg", "r"], ["/tmp", "list"]]
    found = call(server, "opens", files=[*allowed, *refused])
    assert found == {**{path: "" for path, _ in allowed}, **{path: "PermissionError" for path, _ in refused}}
    found = call(server, "opens", files=[[module, "a"], [str(secret), "a"]])
    assert found == {module: "PermissionError", str(secret): "PermissionError"}


def test_a_store_in_the_folder_that_a_run_started_in_is_not_read_but_packages_there_are(tmp_path: Path) -> None:
    if not abilities()["files limited by Landlock or a root of its own"]:
        pytest.skip("this machine has no Landlock")
    tmp_path.joinpath("population.sqlite").write_text("x")
    tmp_path.joinpath("kernels_of_mine").mkdir()
    tmp_path.joinpath("kernels_of_mine", "__init__.py").write_text("")
    program = _IN_A_FOLDER.replace("FOLDER", str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": search_path()}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert list(json.loads(done.stdout).values()) == ["PermissionError", "", ""]


_IN_A_FOLDER = """
import json
from evo.tracing.sandbox import ForkServer, Limits
server = ForkServer("test", Limits())
files = [["FOLDER/population.sqlite", "r"], ["FOLDER", "list"], ["FOLDER/kernels_of_mine/__init__.py", "r"]]
print(json.dumps(server.call("tests.evo_tests.sandbox_children:opens", {"files": files}, deadline_s=20)))
server.close()
"""


def test_a_child_works_with_files_in_its_folder(server: ForkServer) -> None:
    assert call(server, "works_with_files") == {"text": "text", "random": 4, "left": ["one"]}


def test_any_forked_process_can_be_limited_alike(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    environment = {**os.environ, "PYTHONPATH": search_path()}
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(own), str(other)], env=environment, capture_output=True, text=True, check=True
    )
    able = abilities()
    expected = {
        "own": "",
        "other": "PermissionError" if able["files limited by Landlock or a root of its own"] or os.geteuid() == 0 else "",
    }
    expected |= {"tcp": "PermissionError"} if able["system calls filtered by seccomp"] else {}
    found = json.loads((own / "found").read_text())
    assert {key: found[key] for key in expected} == expected, done.stderr
    assert found["uid"] == (NOBODY if able["user of its own"] else os.geteuid())


_LIMITED = """
import json, os, socket, sys
from pathlib import Path
from evo.tracing.sandbox import Limits, apply_limits

def met(action):
    try:
        action()
    except OSError as error:
        return type(error).__name__
    return ""

own, other = map(Path, sys.argv[1:])
if os.fork() == 0:
    apply_limits(Limits(), writable=(str(own),))
    found = {"own": met(lambda: (own / "x").write_text("x")), "other": met(lambda: (other / "x").write_text("x"))}
    found |= {"tcp": met(socket.socket), "uid": os.getuid()}
    (own / "found").write_text(json.dumps(found))
    os._exit(0)
os.wait()
"""


def _kill_guard(server: ForkServer) -> None:
    assert server._process is not None
    server._process.kill()


@pytest.mark.parametrize("end", [ForkServer.close, _kill_guard])
def test_nothing_is_left_of_a_server_that_was_closed_or_killed(end: Callable[[ForkServer], None]) -> None:
    server = ForkServer("test", LIMITS)
    name = f"stray-{secrets.token_hex(4)}"
    with ThreadPoolExecutor(1) as thread:
        call_ = thread.submit(call, server, "leave_a_daemon", deadline_s=90, comm=name)
        seen(name)
        end(server)
        assert isinstance(call_.exception(), WorkerDied)
    wait_until(lambda: not named(name), "end of the daemon", 50)  # it would end by itself after 60 seconds
    server.close()


def test_the_network_leads_nowhere(server: ForkServer) -> None:
    if not abilities()["own network namespace"]:
        pytest.skip("this machine refuses network namespaces")
    assert call(server, "interfaces") == {"up": []}


def test_children_do_not_see_each_other_s_files(server: ForkServer) -> None:
    first = call(server, "working_folder")["path"]
    assert call(server, "working_folder")["path"] != first
    assert not Path(str(first)).exists()
