"""What a search has learned so far, for a prompt: examples, what worked, lessons, history, what was abandoned. All of it is data."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from evo.records import Status
from operators.base import Context, Example, Parent
from operators.prompting import fenced

HISTORY_LIMIT = 10
"""Variants of the history that a prompt lists; more of them say little and cost tokens in every request."""

TABU_LIMIT = 20
LESSON_LIMIT = 8
WORKED_LIMIT = 8

HISTORY_CHARACTERS = 16_000
"""Of the best of the history; a longer one would cost more than the parents, which are shown in any case."""

EXAMPLE_CHARACTERS = 8_000
"""Longer examples are left out: half a kernel teaches nothing."""


def notes_text(context: Context, parents: Collection[Parent], *, examples: bool = True, source: bool = True) -> str:
    """Sections, the ones that change least first; those without content are left out, but for history and abandoned strategies.

    Args:
        context: See `Context`.
        parents: Left out of the history.
        examples: Whether similar kernels are shown.
        source: Whether the best of the history is shown in full; without code nothing anchors a new design to an old one.
    """
    sections = [
        ("Similar kernels that are good, as examples of technique", examples_text(context.examples) if examples else ""),
        ("Strategies that gained elsewhere on this task, newest last", _list(context.worked, WORKED_LIMIT)),
        ("Lessons from earlier failures", _list(context.lessons, LESSON_LIMIT)),
        ("What was tried before, slowest first", history_text(context.history, parents, source=source)),
        ("Abandoned strategies; do not try them again", _list(context.tabu, TABU_LIMIT) or "None yet."),
    ]
    return "\n\n".join(f"# {title}\n\n{text}" for title, text in sections if text)


def examples_text(examples: Sequence[Example]) -> str:
    """Each example with where it is from and how good it was."""
    parts = []
    for example in examples:
        if len(example.source) <= EXAMPLE_CHARACTERS:
            gained = f", {example.speedup:.2f} times as fast as its own baseline" if example.speedup > 0 else ""
            parts.append(f"From:\n\n{fenced(f'{example.origin}{gained}', limit=300)}\n\n{fenced(example.source, 'python')}")
    return "\n\n".join(parts)


def history_text(history: Collection[Parent], parents: Collection[Parent], *, source: bool = True) -> str:
    """The best of the history, in its order (ascending), with the source of the last one where it passed."""
    shown = {parent.variant.variant_id for parent in parents}
    others = [item for item in history if item.variant.variant_id not in shown][-HISTORY_LIMIT:]
    if not others:
        return "Nothing yet."
    lines = "\n".join(f"{number}. {_summary(item)}" for number, item in enumerate(others, start=1))
    best = others[-1]
    text = fenced(lines)
    passed = best.evaluation is not None and best.evaluation.status is Status.PASSED
    if source and passed and len(best.variant.source) <= HISTORY_CHARACTERS:
        text += f"\n\nSource of number {len(others)}:\n\n{fenced(best.variant.source, 'python')}"
    return text


def _list(lines: Collection[str], limit: int) -> str:
    """The newest lines, each on one line; empty for none."""
    return fenced("\n".join(f"* {' '.join(line.split())}" for line in list(lines)[-limit:])) if lines else ""


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
