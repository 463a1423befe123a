"""Runs NVIDIA's compute-sanitizer over a replay of an elite's kernels on its small cases: accesses beyond buffers, and races.

What it adds to guard bands and repeats: reads beyond a buffer whose values are not used, and hazards in shared memory that did not
strike. A machine without the tool, or where it does not work (containers that intercept the driver), is told as such, not as a failure.
"""

from __future__ import annotations

import glob
import math
import os
import pickle
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from evo.evaluation.examination import Examination
from evo.evaluation.sanitize_child import DONE, Sanitized
from evo.evaluation.tier import Candidate
from evo.records import Failure, Stage, Status
from evo.tasks.base import Task
from evo.tracing.sandbox import search_path

EXECUTABLE = "compute-sanitizer"
USUAL_PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/usr/local/cuda-*/bin", "/opt/cuda/bin")
TOOLS = ("memcheck", "racecheck")
FOUND = 77
"""Exit code of the sanitizer where it found something; it is not that of a Python that fails."""
MAX_REPORT = 1 << 20

_LINE = re.compile(r"^=========\s?(.*)$", re.MULTILINE)
_PLACE = re.compile(r"\+0x[0-9a-f]+\b|\bat 0x[0-9a-f]+ in ")
_MEMORY = re.compile(r"^(Invalid|Misaligned|Unaligned|Stack overflow|Double free)\b")
_HAZARD = re.compile(r"^Error: .*(Race|hazard)", re.IGNORECASE)
_NOTHING = re.compile(r"ERROR SUMMARY: 0 errors")
_UNUSABLE = re.compile(
    r"(Device not supported|Internal Sanitizer Error|Unable to|No attachable process|Unsupported|Failed to|Invalid (?:option|value)).*",
    re.IGNORECASE,
)


class Sanitizers(Examination):
    """memcheck and racecheck, each once per candidate over all its small cases.

    Args:
        deadline_s: Of one tool.
        executable: Path of compute-sanitizer; looked for on PATH and in CUDA's usual places if None.
    """

    def __init__(self, *, deadline_s: float = 120.0, executable: str | None = None) -> None:
        self._deadline_s = deadline_s
        self._executable = executable or find_sanitizer()

    def examine(self, task: Task, candidates: Sequence[Candidate]) -> tuple[str, ...] | Failure:
        """See `Examination`."""
        if self._executable is None:
            return tuple(f"{tool} not applied: {EXECUTABLE} is not installed" for tool in TOOLS)
        reference = str(task.path) if task.path else task.name
        small = [item for item in candidates if item.case in task.small_cases]
        works = [Sanitized(reference, item.case.name, item.plan, item.binaries) for item in small]
        names = {kernel.name for item in small for kernel in item.plan.kernels}
        with tempfile.TemporaryDirectory(prefix="triton-evolve-sanitize-") as folder:
            file = Path(folder) / "plans.pickle"
            file.write_bytes(pickle.dumps((math.ceil(self._deadline_s) + 10, secrets.randbits(31), works)))
            with ThreadPoolExecutor(len(TOOLS)) as threads:  # each takes seconds to start, in which the device is idle
                reports = threads.map(lambda tool: self._run(tool, file), TOOLS)
                outcomes = [read_report(tool, *report, names) for tool, report in zip(TOOLS, reports, strict=True)]
        checks = [outcome for outcome in outcomes if not isinstance(outcome, Failure)]
        return next((outcome for outcome in outcomes if isinstance(outcome, Failure)), tuple(checks))

    def close(self) -> None:
        """Owns nothing between examinations."""

    def _run(self, tool: str, file: Path) -> tuple[str, bool]:
        """The report, cut to `MAX_REPORT` characters, and whether it ended in time."""
        assert self._executable is not None
        command = [
            self._executable, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20",
            *(["--report-api-errors", "no"] if tool == "memcheck" else []),
            sys.executable, "-m", "evo.evaluation.sanitize_child", str(file),
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": search_path(), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        with (file.parent / f"{tool}.txt").open("w+b") as report:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # it ends with us, see `evo.evaluation.sanitize_child`
                stdout=report,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            try:
                process.wait(self._deadline_s)
                in_time = True
            except subprocess.TimeoutExpired:
                in_time = False
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                process.stdin.close()  # type: ignore[union-attr]  # a pipe was asked for
            report.seek(0)
            return report.read(MAX_REPORT).decode(errors="replace"), in_time


def find_sanitizer() -> str | None:
    """Path of compute-sanitizer; None where there is none."""
    found = shutil.which(EXECUTABLE)
    if found is not None:
        return found
    places = (path for pattern in USUAL_PLACES for path in sorted(glob.glob(f"{pattern}/{EXECUTABLE}"), reverse=True))
    return next((path for path in places if os.access(path, os.X_OK)), None)


def read_report(tool: str, report: str, in_time: bool, kernels: set[str]) -> str | Failure:
    """What one tool's report says: the name of a check that was passed, why it was not applied, or the first error in one of `kernels`."""
    lines = [line.strip() for line in _LINE.findall(report)]
    sign = _HAZARD if tool == "racecheck" else _MEMORY
    understood = False
    for number, line in enumerate(lines):
        if not sign.match(line):
            continue
        understood = True
        # The kernel is named on the line itself, or on one of the few below it (a hazard names two accesses).
        place = "\n".join(lines[number : number + 4])
        named = [name for name in kernels if re.search(rf"(?<![\w$.:]){re.escape(name)}(?:\(|\+0x|\s|$)", place)]
        if named or not _PLACE.search(place):  # else in a kernel of torch's
            return _problem(tool, line, named[0] if named else "")
    if not in_time:
        return f"{tool} not applied: it took too long"
    if DONE not in report:
        unusable = next((match.group(0) for line in report.splitlines() if (match := _UNUSABLE.search(line))), "")
        last = next((line.strip() for line in reversed(report.splitlines()) if line.strip()), "no report")
        return f"{tool} not applied: {(unusable or last)[:200]}"
    if tool == "memcheck" and not understood and not any(_NOTHING.search(line) for line in lines):
        return f"{tool} not applied: its report is not understood: {(lines or ['nothing'])[-1][:200]}"
    return tool


def _problem(tool: str, line: str, kernel: str) -> Failure:
    text = line if not kernel or kernel in line else f"{line} in {kernel}"
    status = Status.NONDETERMINISTIC if tool == "racecheck" else Status.GUARD_VIOLATION
    return Failure(status, Stage.VERIFY, f"{tool}: {text}", f"{status.value}:{tool}:{kernel}")
