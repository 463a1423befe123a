"""Our engine beside OpenEvolve and ShinkaEvolve: candidates per second as a run grows, and what kill -9 and hanging candidates cost.

    python -m venv openevolve && openevolve/bin/pip install openevolve==0.4.1
    python -m venv shinka && shinka/bin/pip install shinka-evolve==0.0.7
    python -m experiments.peers_scale --openevolve openevolve/bin/python --shinka shinka/bin/python --out experiments/results

All have the same model, which answers at once with a module that has a number of its own, and the same evaluator, which reads that number;
four evaluations at a time. See `experiments/peers`. A candidate counts when its evaluation returns.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.commands.measured import described, measured_with, write_results

HERE = Path(__file__).resolve().parent
MARKS = (200, 400, 1_000, 2_000, 5_000, 10_000, 20_000)
"""Rates are measured over the last 200 candidates before each."""
WINDOW = 200
KILL_AFTER = 150
ORPHAN_S = 180.0
"""How long processes of a killed run may take to end."""
LIMIT_S = 420.0
"""No run is watched for longer."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class System:
    """How one system is started."""

    name: str
    version: str
    command: Sequence[str]

    def start(self, folder: Path, candidates: int, *, hang: bool = False, resumed: bool = False) -> subprocess.Popen[bytes]:
        """Starts a run in a folder, or goes on with it."""
        environment = {**os.environ, "PEERS_FOLDER": str(folder), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
        if hang:
            environment["PEERS_HANG"] = "1"
        more = [str(latest)] if resumed and (latest := _checkpoint(folder)) is not None else []
        log = (folder / f"log{'-resumed' if resumed else ''}.txt").open("wb")
        return subprocess.Popen(
            [*self.command, str(candidates), *more], env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )


def _checkpoint(folder: Path) -> Path | None:
    """The newest of OpenEvolve."""
    found = sorted((folder / "out" / "checkpoints").glob("checkpoint_*"), key=lambda item: int(item.name.rpartition("_")[2]))
    return found[-1] if found else None


def rates(system: System, programs: int) -> dict[str, Any]:
    """Candidates per second, and CPU of all its processes per candidate, as the run grows."""
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        process = system.start(folder, programs + 50)
        seen: list[tuple[float, int, float]] = []
        begun = time.monotonic()
        try:
            while process.poll() is None and time.monotonic() - begun < LIMIT_S:
                seen.append((time.monotonic() - begun, len(_lines(folder)), _cpu(process.pid)))
                if seen[-1][1] >= programs:
                    break
                time.sleep(0.25)
        finally:
            _end(process)
        marks = {}
        for mark in (mark for mark in MARKS if mark <= programs):
            after = next((item for item in seen if item[1] >= mark), None)
            before = [item for item in seen if item[1] <= mark - WINDOW]
            if after is not None and before:
                count = after[1] - before[-1][1]
                marks[mark] = {
                    "per_second": count / (after[0] - before[-1][0]),
                    "cpu_ms": 1e3 * (after[2] - before[-1][2]) / count,
                }
        return {"reached": seen[-1][1], "seconds": seen[-1][0], "marks": marks}


def killed(system: System) -> dict[str, Any]:
    """What is left of a run whose main process is killed, and of its finished evaluations after it has gone on."""
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        process = system.start(folder, 100_000)
        _until(folder, process, KILL_AFTER)
        below = {pid: title for pid in _below(process.pid) if (title := _title(pid))}
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        begun = time.monotonic()
        orphans = dict(below)
        while orphans and time.monotonic() - begun < ORPHAN_S:
            time.sleep(0.5)
            orphans = {pid: title for pid, title in orphans.items() if _title(pid) == title}
        gone = time.monotonic() - begun
        finished = {int(line.split()[1]) for line in _lines(folder)} - {0}
        for pid in orphans:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        again = system.start(folder, len(finished) + 150, resumed=True)
        try:
            _until(folder, again, len(_lines(folder)) + 110, limit_s=120.0)
            time.sleep(5)
        finally:
            _end(again)
        kept = _numbers(folder)
        left = sorted(orphans.values())
        return {"finished": len(finished), "lost": len(finished - kept), "processes": len(below), "left": left, "gone_s": gone}


def hanging(system: System) -> dict[str, Any]:
    """Timeouts that a run reports where four candidates hang and the others take no time."""
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        process = system.start(folder, 120, hang=True)
        begun = time.monotonic()
        while process.poll() is None and time.monotonic() - begun < 120:
            time.sleep(0.5)
        ended = process.poll() is not None
        _end(process)
        hung = len(list(folder.glob("hung-*")))
        return {"hung": hung, "timeouts": _timeouts(folder), "evaluated": len(_lines(folder)), "ended": ended}


def _until(folder: Path, process: subprocess.Popen[bytes], count: int, limit_s: float = LIMIT_S) -> None:
    begun = time.monotonic()
    while len(_lines(folder)) < count and process.poll() is None and time.monotonic() - begun < limit_s:
        time.sleep(0.1)


def _lines(folder: Path) -> list[str]:
    log = folder / "evaluated"
    return log.read_text().splitlines() if log.exists() else []


def _numbers(folder: Path) -> set[int]:
    """Numbers of the candidates that a run has recorded with a score."""
    texts: list[str] = []
    ours, shinka, checkpoint = folder / "out.sqlite", folder / "out" / "programs.sqlite", _checkpoint(folder)
    if ours.exists():
        with sqlite3.connect(ours) as opened:
            query = "SELECT source FROM variants JOIN standings USING (variant_id)"
            texts = [json.loads(text) for (text,) in opened.execute(query)]
    elif shinka.exists():
        with sqlite3.connect(shinka) as opened:
            texts = [text for (text,) in opened.execute("SELECT code FROM programs")]
    elif checkpoint is not None:
        texts = [json.loads(path.read_text())["code"] for path in (checkpoint / "programs").glob("*.json")]
    return {int(found[1]) for text in texts if (found := re.search(r"NUMBER = (\d+)", text))}


def _timeouts(folder: Path) -> int:
    """Evaluations that a run gave up: by status, by its log, or (ShinkaEvolve) candidates that are recorded as failed."""
    if (folder / "out.sqlite").exists():
        with sqlite3.connect(folder / "out.sqlite") as opened:
            return int(opened.execute("SELECT count(*) FROM evaluations WHERE status = 'timeout'").fetchone()[0])
    if (database := folder / "out" / "programs.sqlite").exists():
        with sqlite3.connect(database) as opened:
            return int(opened.execute("SELECT count(*) FROM programs WHERE correct = 0").fetchone()[0])
    logs = (folder / "out" / "logs").glob("*.log")
    return sum(line.count("Evaluation timed out") for path in logs for line in path.read_text(errors="replace").splitlines())


def _below(pid: int) -> list[int]:
    """Processes below one, at any depth."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            children.setdefault(int((folder / "stat").read_text().rpartition(")")[2].split()[1]), []).append(int(folder.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _title(pid: int) -> str:
    """What a process is called; empty for one that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:120]
    return ""


def _cpu(pid: int) -> float:
    """CPU seconds of a process and those below it, ended ones included as far as somebody waited for them."""
    total = 0
    for item in (pid, *_below(pid)):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{item}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15])
    return total / TICKS


def _end(process: subprocess.Popen[bytes]) -> None:
    below = _below(process.pid)
    for pid in (process.pid, *below):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def page(results: Mapping[str, Any]) -> str:
    """Markdown."""
    systems = results["systems"]
    marks = sorted({int(mark) for found in systems.values() for mark in found["rates"]["marks"]})

    def cell(found: Mapping[str, Any], mark: int) -> str:
        at = {int(key): value for key, value in found["rates"]["marks"].items()}.get(mark)
        return "–" if at is None else f"{at['per_second']:.1f} ({at['cpu_ms']:.1f} ms)"

    lines = [
        described(results["session"]),
        "",
        "The same instant model and trivial evaluator, four evaluations at a time. Candidates per second of wall time over the last "
        f"{WINDOW} before each size (in brackets: CPU of all processes per candidate). {results['remark']}",
        "",
        "| | " + " | ".join(f"{name} {found['version']}" for name, found in systems.items()) + " |",
        "|---|" + "---|" * len(systems),
    ]
    lines += [
        f"| at {mark:,} candidates | " + " | ".join(cell(found, mark) for found in systems.values()) + " |" for mark in marks
    ]
    facts = [
        ("reached in the time given", lambda found: f"{found['rates']['reached']:,} in {found['rates']['seconds']:.0f} s"),
        ("kill -9: finished evaluations", lambda found: str(found["killed"]["finished"])),
        ("of them lost after going on", lambda found: str(found["killed"]["lost"])),
        (
            f"processes left {ORPHAN_S:.0f} s after the kill",
            lambda found: f"{len(found['killed']['left'])} of {found['killed']['processes']} ({found['killed']['gone_s']:.0f} s)",
        ),
        (
            "four candidates hang: timeouts reported",
            lambda found: f"{found['hanging']['timeouts']}" + ("" if found["hanging"]["ended"] else " (did not end in 120 s)"),
        ),
    ]
    lines += [f"| {name} | " + " | ".join(figure(found) for found in systems.values()) + " |" for name, figure in facts]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--openevolve", help="Python of its environment")
    parser.add_argument("--shinka", help="Python of its environment")
    parser.add_argument("--programs", type=int, default=2_000, help="of the peers")
    parser.add_argument("--ours", type=int, default=20_000, help="candidates of our run; 0: none")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    parser.add_argument("--remark", default="", help="about the machine, for the page")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit")
    given = parser.parse_args()
    globals()["LIMIT_S"] = given.limit_s
    systems = []
    if given.ours:
        version = importlib.metadata.version("triton-evolve")
        systems.append((System("triton-evolve", version, [sys.executable, "-m", "experiments.peers.ours_run"]), given.ours))
    if given.openevolve:
        systems.append((_peer("openevolve", given.openevolve, "openevolve", "openevolve_run.py"), given.programs))
    if given.shinka:
        systems.append((_peer("shinka-evolve", given.shinka, "shinka-evolve", "shinka_run.py"), given.programs))
    session = measured_with(given.commit, ["python", "-m", "experiments.peers_scale", *sys.argv[1:]])
    session["ray"] = importlib.metadata.version("ray")
    found: dict[str, Any] = {}
    for system, programs in systems:
        found[system.name] = {"version": system.version}
        measures = {"rates": functools.partial(rates, system, programs), "killed": functools.partial(killed, system)}
        measures["hanging"] = functools.partial(hanging, system)
        for what, measure in measures.items():
            found[system.name][what] = measure()
            print(system.name, what, json.dumps(found[system.name][what]), flush=True)
    results = {"session": session, "remark": given.remark, "systems": found}
    write_results(given.out, "peers_scale", results, page(results))


def _peer(name: str, python: str, package: str, driver: str) -> System:
    text = f"import importlib.metadata as m; print(m.version({package!r}))"
    version = subprocess.run([python, "-c", text], capture_output=True, text=True, check=True).stdout.strip()
    return System(name, version, [str(Path(python).absolute()), str(HERE / "peers" / driver)])


if __name__ == "__main__":
    main()
