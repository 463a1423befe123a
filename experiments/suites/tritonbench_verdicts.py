"""Counts what the tracer makes of TritonBench-G's files: replayable, hosted, refused or failed, each refusal with a judgement.

A file is *replayed* if every call of its test traces to a valid plan, *hosted* if a call needs values on the host, *refused* if a call
breaks a rule (the reason is named), *failed* if it does not trace or the file does not run with this torch and Triton, *unread* if a
call's arguments are none that a task can give. The worst call counts. Nothing is compiled or launched: no GPU is needed.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from evo.commands.measured import described
from evo.errors import TaskError
from evo.knobs import read_knobs
from evo.records import Configuration, Failure, Status
from evo.suites.recording import Recording
from evo.suites.tritonbench_files import Called, Recorded, read_file, recorded_calls, suite_files
from evo.tracing.workbench import Job, Workbench

VERDICTS = ("failed", "refused", "hosted", "unread", "replayed")
"""From worst to best."""
_STATUS = {Status.UNTRACEABLE: "hosted", Status.REJECTED: "refused"}
JUDGEMENTS: Sequence[tuple[str, str, str]] = (
    (r"^torch computes aten\.(rand|randn|randint)\b", "right", "torch draws random numbers; a task may allow that operator"),
    (r"^torch computes aten\.", "right", "torch computes a part of the result; a task may allow those operators"),
    (r"no Triton kernel is launched", "right", "on these arguments the wrapper launches nothing of its own"),
    (
        r"reads a value on the host|moves data to the host|needs a value on the host",
        "right",
        "the wrapper reads a value on the host: the hosted tier takes it",
    ),
    (r"Block pointers have been removed", "right", "block pointers are gone from this Triton"),
    (r"the test calls nothing that launches a kernel", "right", "the file's test launches nothing"),
    (r"^a kernel argument of type \w+ for", "right", "an object of the file's own hands out an address, which no plan can hold"),
    (r"This layer norm doesn't support feature dim", "right", "the file refuses that size itself"),
    (
        r"'tuple_type' object has no attribute 'is_ptr'",
        "right",
        "the kernel does not compile: a comma makes a tuple of a pointer",
    ),
    (r"^IndexError: tuple index out of range.*", "right", "the file reads the state of the device's random generator"),
    (r"No module named 'triton\.ops", "right", "triton.ops is gone from Triton"),
    (r"without a device makes a host tensor", "right", "the wrapper makes a tensor on the host in every call"),
    (r"argument of type TensorWrapper", "false alarm", "triton.reinterpret is not recorded yet"),
    (r"another stream", "right", "work on another stream is timed by nobody"),
    (r"^a tensor is used that this call neither", "right", "values of several numbers come from the host in every call"),
    (r"^a tensor of torch\.|^dtype '|an argument of type|a module as an argument", "right", "a task gives no such argument"),
    (r"the record process ended", "right", "the test itself took too long on the CPU"),
    (r"^\(triton\.language\.\w+, triton\.language\.\w+\)$", "right", "this Triton's libdevice has no such overload"),
)
"""Pattern of a message, ``right`` or ``false alarm``, and why. The first that is found counts."""


def count_verdicts(
    folder: Path, target: str, workers: int, limit_s: float, known: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """The verdicts on all files.

    Args:
        folder: Of the suite's files.
        target: What kernels are traced for.
        workers: Files side by side.
        limit_s: No file is begun later than this.
        known: Rows by file of an earlier, limited run that are kept, see `replayed_rows`.
    """
    begun = time.monotonic()
    bench = Workbench(target, workers=workers)
    spare: SimpleQueue[Recording] = SimpleQueue()
    recordings = [Recording(target) for _ in range(workers)]
    for recording in recordings:
        spare.put(recording)
    late = threading.Event()

    def judge(path: Path) -> dict[str, Any] | None:
        if known and path.name in known:
            return dict(known[path.name])
        if time.monotonic() - begun > limit_s:
            late.set()
            return None
        with _lent(spare) as recording:
            row = _file_row(path, recording, bench)
        print(f"{row['file']}: {row['verdict']}", *dict.fromkeys(reason["signature"] for reason in row["reasons"]), flush=True)
        return row

    try:
        bench.start()
        with ThreadPoolExecutor(workers) as pool:
            rows = [row for row in pool.map(judge, suite_files(folder)) if row is not None]
    finally:
        bench.close()
        for recording in recordings:
            recording.close()
    return {
        "target": target,
        "seconds": time.monotonic() - begun,
        "complete": not late.is_set(),
        "files": len(rows),
        "verdicts": dict(Counter(row["verdict"] for row in rows)),
        "rows": rows,
    }


def replayed_rows(file: Path, session: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Rows of an earlier run's results that need not be made again: of the same versions, and replayed; none without such results."""
    if not file.exists():
        return {}
    earlier = json.loads(file.read_text(encoding="utf-8"))
    same = all(earlier["session"][key] == session[key] for key in ("torch", "triton", "python"))
    return {row["file"]: row for row in earlier["rows"] if same and row["verdict"] == "replayed"}


@contextmanager
def _lent(spare: SimpleQueue[Recording]) -> Iterator[Recording]:
    recording = spare.get()
    try:
        yield recording
    finally:
        spare.put(recording)


def _file_row(path: Path, recording: Recording, bench: Workbench) -> dict[str, Any]:
    """A file's verdict, its calls' verdicts and reasons."""
    try:
        recorded = recorded_calls(recording, read_file(path))
    except TaskError as error:
        return _row(path, "failed", [_reason("layout", "failed", str(error))], Recorded((), (), "", ""))
    calls = [reason for called in recorded.called for reason in _traced(called, bench)]
    calls += [_reason(label, "unread", problem) for label, problem in recorded.unread]
    if recorded.module:
        calls.append(_reason("import", "failed", _uncoded(recorded.module)))
    elif not calls:
        calls.append(_reason("test", "unread", _uncoded(recorded.test) or "the test calls nothing that launches a kernel"))
    verdict = next(name for name in VERDICTS if any(call["verdict"] == name for call in calls))
    return _row(path, verdict, calls, recorded)


def _row(path: Path, verdict: str, calls: Sequence[Mapping[str, Any]], recorded: Recorded) -> dict[str, Any]:
    reasons: dict[str, dict[str, Any]] = {}
    for call in calls:
        if call["verdict"] != "replayed":
            reasons.setdefault(call["signature"], {**call, "calls": 0})["calls"] += 1
    counted = dict(Counter(call["verdict"] for call in calls))
    return {
        "file": path.name,
        "verdict": verdict,
        "calls": counted,
        "reasons": list(reasons.values()),
        "test_ended": recorded.test,
    }


def _traced(called: Called, bench: Workbench) -> list[dict[str, Any]]:
    """A verdict per call."""
    try:
        configuration = read_knobs(called.source).default
    except ValueError:
        configuration = Configuration()  # the tracer's lint says what is wrong
    jobs = [Job(called.source, called.task, case, configuration, binaries=False) for case in called.task.training_cases]
    return [
        _reason(called.label, _STATUS.get(made.status, "failed"), _said(made), made.signature)
        if isinstance(made, Failure)
        else _reason(called.label, "replayed", "")
        for made in bench.prepare(jobs)
    ]


def _reason(label: str, verdict: str, message: str, signature: str = "") -> dict[str, Any]:
    judgement, why = next(((kind, why) for pattern, kind, why in JUDGEMENTS if re.search(pattern, message)), ("", ""))
    signature = signature or f"{verdict}:{message[:120]}"
    return {"label": label, "verdict": verdict, "message": message, "signature": signature, "judgement": judgement, "why": why}


def _said(failure: Failure) -> str:
    """What a failure says, without lines of the suite's code."""
    text = re.sub(r"^case \w+: ", "", failure.message)
    return text.strip().splitlines()[-1] if failure.status is Status.COMPILE_ERROR else _uncoded(text)


def _uncoded(text: str) -> str:
    return re.sub(r"\n +at line (\d+): .*", r" (line \1)", text)


def verdicts_page(results: Mapping[str, Any]) -> str:
    """Markdown: counts, reasons with their judgement, then a line per file that is not simply replayed."""
    rows = results["rows"]
    counts = ", ".join(f"{results['verdicts'].get(name, 0)} {name}" for name in reversed(VERDICTS))
    calls = sum((Counter(row["calls"]) for row in rows), Counter[str]())
    lines = [
        described(results["session"]),
        "",
        f"TritonBench-G's files, traced for {results['target']} on the arguments of their own tests, no operators allowed beyond a "
        f"task's default. {results['files']} files: {counts}. {calls.total()} different calls: "
        f"{', '.join(f'{calls[name]} {name}' for name in reversed(VERDICTS))}. {results['seconds']:.0f} s"
        + ("." if results["complete"] else "; stopped early by its limit."),
        "",
        "| judgement | reason | verdict | files |",
        "|---|---|---|---|",
    ]
    grouped = Counter(
        (reason["judgement"] or "open", reason["why"] or reason["signature"], reason["verdict"])
        for row in rows
        for reason in {item["why"] or item["signature"]: item for item in row["reasons"]}.values()
    )
    for (judgement, why, verdict), count in sorted(grouped.items(), key=lambda item: (item[0][0], -item[1])):
        lines.append(f"| {judgement} | {why} | {verdict} | {count} |".replace("\n", " "))
    lines += ["", "| file | verdict | calls | reasons |", "|---|---|---|---|"]
    for row in rows:
        counted = ", ".join(f"{count} {name}" for name, count in sorted(row["calls"].items()))
        reasons = "; ".join(_short(reason) for reason in row["reasons"])
        ended = f" (its test ended early: {_line(row['test_ended'])})" if row["test_ended"] else ""
        lines.append(f"| {row['file']} | {row['verdict']} | {counted} | {reasons}{ended} |")
    return "\n".join(lines) + "\n"


def _short(reason: Mapping[str, Any]) -> str:
    judged = f" [{reason['judgement']}]" if reason["judgement"] else ""
    return f"{reason['label']}: {_line(reason['message'])}{judged}"


def _line(text: str, limit: int = 220) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= limit else line[: limit - 1] + "…"
