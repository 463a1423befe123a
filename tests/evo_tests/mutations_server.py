"""A warm process that runs tests against mutated copies of this checkout: a fork per request, nothing of ours imported before it.

Started as a program with the folder of an unmutated copy. Reads requests as lines of JSON (``key``, ``tests``, and for a mutation
``file``, ``old``, ``new``), answers each with a line: ``code`` (pytest's exit code), ``passed``, ``skipped`` and ``failed`` (by node
id), or ``problem``; and ``log``.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import shutil
import signal
import sys
import time
import traceback
from collections import deque
from pathlib import Path
from typing import Any

import pytest

SIDE_BY_SIDE = 2
DEADLINE_S = 400.0
WARM = (
    "hypothesis", "numpy", "pydantic", "ray", "torch", "torch._subclasses.fake_tensor", "triton", "triton.compiler",
    "triton.runtime.interpreter", "optuna",
)  # fmt: skip


class Notes:
    """A plugin of pytest's: what became of each test."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.skipped: list[str] = []
        self.failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Of each of a test's three phases."""
        if report.failed:
            self.failed.setdefault(report.nodeid, report.longreprtext.splitlines()[-1] if report.longreprtext else report.when)
        elif report.skipped:
            self.skipped.append(report.nodeid)
        elif report.when == "call":
            self.passed.append(report.nodeid)

    def pytest_exception_interact(self, node: Any, call: Any) -> None:
        """The kind of error is told first."""
        self.failed[node.nodeid] = f"{call.excinfo.typename}: {str(call.excinfo.value)[:300]}"


def mutated(base: Path, folder: Path, request: dict[str, Any]) -> str:
    """Makes a copy of the checkout in `folder` with one text replaced; what is wrong with the request, else nothing."""
    shutil.copytree(base, folder, copy_function=os.link)
    if "file" not in request:
        return ""
    path = folder / request["file"]
    text = path.read_text()
    if text.count(request["old"]) != 1 or request["old"] == request["new"]:
        return f"{request['file']} holds the old text {text.count(request['old'])} times, and not once: the mutation is stale"
    path.unlink()  # else the copy, whose file this is too, would change
    path.write_text(text.replace(request["old"], request["new"]))
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()
    return ""


def run(base: Path, folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Runs the tests of a request in this process, which is spent afterwards."""
    problem = mutated(base, folder, request)
    if problem:
        return {"problem": problem}
    os.chdir(folder)
    sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
    os.environ["PYTHONPATH"] = str(folder)
    notes = Notes()
    stop = ["-x"] if "file" in request else []
    known = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are warm too
    options = ["-q", "-m", "", "-p", "no:cacheprovider", "--rootdir", str(folder), "-c", "pyproject.toml"]
    code = pytest.main([*request["tests"], *stop, *known, *options], plugins=[notes])
    where = getattr(sys.modules.get("evo"), "__file__", None)
    if where is not None and not where.startswith(str(folder)):
        return {"problem": f"the tests ran against {where}"}
    return {"code": int(code), "passed": notes.passed, "skipped": notes.skipped, "failed": notes.failed}


def forked(base: Path, number: int, request: dict[str, Any]) -> tuple[int, Path]:
    """Starts a request; its process, and the folder that its answer will be in."""
    place = base.parent / str(number)
    place.mkdir(mode=0o755)
    pid = os.fork()
    if pid:
        return pid, place
    try:
        os.setsid()
        log = os.open(place / "log", os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        answer = run(base, place / "checkout", request)
        (place / "answer").write_text(json.dumps(answer))
    except BaseException:  # noqa: BLE001  seen in the log
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def ended(pid: int, place: Path, expired: bool) -> dict[str, Any]:
    """The answer of a request that is over; its process, and what it left, go."""
    for which in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, which)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    os.waitpid(pid, 0)
    answer, log = place / "answer", place / "log"
    if answer.exists():
        found: dict[str, Any] = json.loads(answer.read_text())
    else:
        found = {"problem": f"it took more than {DEADLINE_S:g} s" if expired else "its process ended without an answer"}
    found["log"] = log.read_text(errors="replace")[-6000:] if log.exists() else ""
    shutil.rmtree(place, ignore_errors=True)
    return found


def main(base: Path) -> None:
    """Serves until the input ends."""
    sys.path.remove(str(Path(__file__).parent))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    for name in WARM:
        importlib.import_module(name)
    waiting: deque[dict[str, Any]] = deque()
    running: dict[int, tuple[int, Path, str, float]] = {}
    number, open_input, rest = 0, True, b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        while open_input or waiting or running:
            while waiting and len(running) < SIDE_BY_SIDE:
                request = waiting.popleft()
                number += 1
                pid, place = forked(base, number, request)
                watched = os.pidfd_open(pid)
                running[watched] = (pid, place, request["key"], time.monotonic() + DEADLINE_S)
                selector.register(watched, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(5.0)}
            if 0 in ready:
                data = os.read(0, 1 << 16)
                *lines, rest = (rest + data).split(b"\n")
                waiting.extend(json.loads(line) for line in lines)
                if not data:
                    open_input = False
                    waiting.clear()
                    selector.unregister(0)
            for watched, (pid, place, key, deadline) in list(running.items()):
                if watched in ready or not open_input or time.monotonic() > deadline:
                    answer = ended(pid, place, watched not in ready)
                    selector.unregister(watched)
                    os.close(watched)
                    del running[watched]
                    if open_input:
                        print(json.dumps({"key": key, **answer}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
