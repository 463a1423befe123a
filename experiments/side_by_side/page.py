"""The table of tasks: one row per case and one per task, with what failed named below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evo.commands.measured import described
from evo.evaluation.statistics import geometric_mean_interval
from experiments.side_by_side.measuring import plain

PLAIN_SIDES = ("start", "best", "eager", "compiled")


def of_task(cases: Sequence[Mapping[str, Any]], libraries: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What the measured cases of one task say together.

    Args:
        cases: From `measure_case`.
        libraries: Library → why its outputs are not the task's, for each case, empty where they are.

    Returns:
        ``library``: the fastest library whose outputs pass on all cases, or where none does, the fastest; None without any. ``wrong``: of
        that one, why its outputs do not pass. ``over_best``: side → geometric mean over cases of its latency over the best variant's,
        of sides that were timed on all cases.
    """
    timed = [side for side in cases[0]["ratios"] if all(side in case["ratios"] for case in cases)]
    over = {side: plain(geometric_mean_interval([case["ratios"][side] for case in cases], seed=0)) for side in timed}
    wrong = {name: next(filter(None, reasons), "") for name, reasons in libraries.items() if name in over}
    library = min(wrong, key=lambda name: (bool(wrong[name]), over[name]["point"]), default=None)
    return {"library": library, "wrong": wrong.get(library or "", ""), "over_best": over}


def table(session: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    ceiling = session["ceiling"]
    versions = "".join(f"{name} {version}. " for name, version in session.get("libraries", {}).items() if name != "torch")
    lines = [
        described(session),
        "",
        f"{versions}Seed {session['seed']}. Achievable: {ceiling['bandwidth'] / 1e12:.2f} TB/s, "
        f"{ceiling['flops'] / 1e12:.0f} TFLOP/s fp16.",
        "",
        "Device latency in µs, call latency in brackets; ratios are latency over the best variant's, with the lower bound of the interval. "
        "*Library* is the fastest of torch's own fused calls, Liger and FlagGems whose outputs pass the task's gate; † marks one "
        "whose outputs do not, where no other is.",
        "",
        "| task, case | start | best | eager | compiled | library | start / best | best of the others / best | roofline | noise |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        lines += [_case_row(result, case) for case in result["cases"]]
        lines.append(_task_row(result))
    notes = sorted({note for result in results for note in _notes(result)})
    return "\n".join([*lines, "", *(f"* {note}" for note in notes)]).rstrip() + "\n"


def _case_row(result: Mapping[str, Any], case: Mapping[str, Any]) -> str:
    device, call, intervals = case["device_us"], case["call_us"], case["intervals"]
    library = result["library"]
    cells = [f"{device[side]:.1f} ({call[side]:.0f})" if side in device else "–" for side in PLAIN_SIDES]
    cells.append(f"{device[library]:.1f} ({call[library]:.0f}) {_marked(result)}" if library in device else "–")
    ratios = [_ratio(intervals, side) for side in ("start", _strongest(result, intervals))]
    name = f"{result['task']}, {case['case']}"
    return f"| {' | '.join([name, *cells, *ratios])} | {case['roofline_share']:.0%} | ±{case['noise']:.1%} |"


def _task_row(result: Mapping[str, Any]) -> str:
    over = result["over_best"]
    cells = [f"**{_ratio(over, side)}**" for side in ("start", _strongest(result, over))]
    name = f"**{result['task']}**, geometric mean"
    return f"| {' | '.join([name, '', '', '', '', '', *cells])} | | |"


def _ratio(figures: Mapping[str, Any], side: str) -> str:
    return f"{figures[side]['point']:.3f} (≥ {figures[side]['low']:.3f})" if side else "–"


def _strongest(result: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """The fastest of eager, compiled and the library; empty where none was timed."""
    others = [side for side in ("eager", "compiled", result["library"]) if side in figures]
    return min(others, key=lambda side: figures[side]["point"], default="")


def _marked(result: Mapping[str, Any]) -> str:
    return f"{result['library'].removesuffix('_kernel')}{'†' if result['wrong'] else ''}"


def _notes(result: Mapping[str, Any]) -> list[str]:
    notes = [
        f"{result['task']}: {side} not timed: {reason}" for case in result["cases"] for side, reason in case["failed"].items()
    ]
    return [*notes, f"{result['task']}: {_marked(result)}: {result['wrong']}"] if result["wrong"] else notes


def summary_line(result: Mapping[str, Any]) -> str:
    """One line per task."""
    over = result["over_best"].items()
    return f"{result['task']}: " + ", ".join(f"{side} / best {value['point']:.3f} (≥ {value['low']:.3f})" for side, value in over)
