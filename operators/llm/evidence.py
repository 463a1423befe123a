"""What is known about variants, in words and tables for a prompt; everything in it that others wrote is fenced as data."""

from __future__ import annotations

from collections.abc import Collection

from evo.records import CaseResult, Evaluation, LatencyKind, Status
from operators.base import Parent
from operators.prompting import fenced

HISTORY_LIMIT = 10
"""Variants of the history that a prompt lists; more of them say little and cost tokens in every request."""

TABU_LIMIT = 20
MESSAGE_LIMIT = 4_000
"""Characters of an error message."""

_LATENCIES = {
    LatencyKind.MEASURED: "measured on",
    LatencyKind.MODELLED: "modelled estimates, not measurements, for",
    LatencyKind.SIMULATED: "simulated, not measured, for",
}


def parent_text(parent: Parent, title: str) -> str:
    """One parent: strategy, verdict with its figures per case, and source."""
    parts = [f"## {title}"]
    if parent.strategy:
        parts.append(f"Strategy behind it:\n\n{fenced(parent.strategy)}")
    parts.append("It has not been evaluated yet." if parent.evaluation is None else verdict_text(parent.evaluation))
    parts.append(f"Its source:\n\n{fenced(parent.variant.source, 'python')}")
    return "\n\n".join(parts)


def verdict_text(evaluation: Evaluation) -> str:
    """A verdict: the figures of every case, or where and how it failed."""
    if evaluation.status is not Status.PASSED or evaluation.latency_kind is None:
        text = f"It failed at the stage {evaluation.stage} with the status {evaluation.status}."
        return (
            f"{text} The evaluator's message:\n\n{fenced(evaluation.message, limit=MESSAGE_LIMIT)}"
            if evaluation.message
            else text
        )
    header = "case | latency us | baseline us | speedup [95 % interval] | error / allowed | peak bytes | configuration"
    rows = "\n".join([header, *(_row(case) for case in evaluation.cases)])
    return f"It is correct. Latencies are {_LATENCIES[evaluation.latency_kind]} {evaluation.device}:\n\n{fenced(rows)}"


def history_text(history: Collection[Parent], parents: Collection[Parent]) -> str:
    """The best of the history, in its order (ascending), with the source of the last one."""
    shown = {parent.variant.variant_id for parent in parents}
    others = [item for item in history if item.variant.variant_id not in shown][-HISTORY_LIMIT:]
    if not others:
        return "Nothing yet."
    lines = "\n".join(f"{number}. {_summary(item)}" for number, item in enumerate(others, start=1))
    best = others[-1]
    text = fenced(lines)
    if best.evaluation is not None and best.evaluation.status is Status.PASSED:
        text += f"\n\nSource of number {len(others)}:\n\n{fenced(best.variant.source, 'python')}"
    return text


def tabu_text(tabu: Collection[str]) -> str:
    """Abandoned strategies, the newest ones where there are many."""
    return fenced("\n".join(f"* {' '.join(line.split())}" for line in list(tabu)[-TABU_LIMIT:])) if tabu else "None yet."


def _summary(item: Parent) -> str:
    strategy = " ".join(item.strategy.split()) or "(no summary)"
    evaluation = item.evaluation
    if evaluation is None:
        return f"not evaluated: {strategy}"
    if evaluation.status is not Status.PASSED:
        return f"failed ({evaluation.stage}, {evaluation.status}): {strategy}"
    return (
        f"speedup {evaluation.speedup:.3f}, {evaluation.latency_kind}, error {evaluation.error_ratio:.2g} of allowed: {strategy}"
    )


def _row(case: CaseResult) -> str:
    cells = (
        case.case,
        f"{case.latency_us:.4g}",
        f"{case.baseline_us:.4g}",
        f"{case.speedup:.3f} [{case.speedup_low:.3f}, {case.speedup_high:.3f}]",
        f"{case.error_ratio:.2g}",
        str(case.peak_bytes),
        repr(case.configuration),
    )
    return " | ".join(cells)
