"""What is known about variants, in words and tables for a prompt; everything in it that others wrote is fenced as data."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evo.records import CaseResult, Evaluation, KernelUse, LatencyKind, Status
from operators.base import Parent
from operators.prompting import fenced

MESSAGE_LIMIT = 4_000
"""Characters of an error message."""

EXCERPT_LINES = 3
"""Lines shown on either side of one that a message names."""

MEMORY_NEAR, COMPUTE_NEAR = 0.6, 0.5
"""Share of a data-sheet limit from which on it is called what limits a kernel: measured kernels seldom pass 0.9 and 0.8 of them."""

_LATENCIES = {
    LatencyKind.MEASURED: "measured on",
    LatencyKind.MODELLED: "modelled estimates, not measurements, for",
    LatencyKind.SIMULATED: "simulated, not measured, for",
}
_NAMED_LINE = re.compile(r"\bline (\d{1,5})\b")


def parent_text(parent: Parent, title: str) -> str:
    """One parent: strategy, verdict with its figures per case, and source."""
    parts = [f"## {title}"]
    if parent.strategy:
        parts.append(f"Strategy behind it:\n\n{fenced(parent.strategy)}")
    parts.append("It has not been evaluated yet." if parent.evaluation is None else verdict_text(parent.evaluation))
    parts.append(f"Its source:\n\n{fenced(parent.variant.source, 'python')}")
    return "\n\n".join(parts)


def verdict_text(evaluation: Evaluation) -> str:
    """A verdict: the figures of every case with what limits it, or where and how it failed."""
    if evaluation.status is not Status.PASSED or evaluation.latency_kind is None:
        text = f"It failed at the stage {evaluation.stage} with the status {evaluation.status}."
        if not evaluation.message:
            return text
        return f"{text} The evaluator's message:\n\n{fenced(evaluation.message, limit=MESSAGE_LIMIT)}"
    header = "case | latency us | baseline us | speedup [95 % interval] | error / allowed | peak bytes | configuration"
    rows = "\n".join([header, *(_row(case) for case in evaluation.cases)])
    device = " ".join(evaluation.device.split())
    parts = [f"It is correct.\n\n{fenced(f'Latencies are {_LATENCIES[evaluation.latency_kind]} {device}.{chr(10)}{rows}')}"]
    limits = [_limit(case) for case in evaluation.cases if case.roofline_us > 0]
    if limits:
        head = "case | data-sheet us for its bytes | for its operations (16-bit matrix rate) | latency / the larger | limited by"
        parts.append(f"How near that is to the target's limits:\n\n{fenced(chr(10).join([head, *limits]))}")
    uses = {_use(kernel): None for case in evaluation.cases for kernel in case.kernels}
    if uses:
        head = "kernel | programs | warps | registers per thread | spilled bytes per thread | shared bytes | occupancy"
        parts.append(f"What its launches take, as compiled:\n\n{fenced(chr(10).join([head, *uses]))}")
    return "\n\n".join(parts)


def failure_text(parent: Parent) -> str:
    """A failed variant: its verdict, the lines of its source that the message names, its strategy and its source."""
    parts = ["# The module that failed"]
    if parent.strategy:
        parts.append(f"Strategy behind it:\n\n{fenced(parent.strategy)}")
    evaluation = parent.evaluation
    parts.append("It is not known how it failed." if evaluation is None else verdict_text(evaluation))
    excerpt = "" if evaluation is None else named_lines(evaluation.message, parent.variant.source)
    if excerpt:
        parts.append(f"Lines that the message names:\n\n{fenced(excerpt)}")
    parts.append(f"Its source:\n\n{fenced(parent.variant.source, 'python')}")
    return "\n\n".join(parts)


def gist(message: str) -> str:
    """What a message says, without the code that a compiler quotes above its caret: words in code are no errors."""
    lines = message.split("\n")
    carets = [place for place, line in enumerate(lines) if line.strip() and not line.strip(" ^")]
    return "\n".join(lines[carets[-1] + 1 :]) if carets else message


def named_lines(message: str, source: str) -> str:
    """The lines of a module that a message names (``line 12``), each with its neighbours; empty where it names none that exists."""
    lines = source.split("\n")
    named = {int(number) for number in _NAMED_LINE.findall(message[:MESSAGE_LIMIT])}
    shown: dict[int, None] = {}
    for number in sorted(item for item in named if 1 <= item <= len(lines))[:4]:
        shown.update(dict.fromkeys(range(max(1, number - EXCERPT_LINES), min(len(lines), number + EXCERPT_LINES) + 1)))
    return "\n".join(f"{'>' if number in named else ' '} {number:4} {lines[number - 1]}" for number in sorted(shown))


def strengths_text(parents: Sequence[Parent], titles: Sequence[str]) -> str:
    """Which parent is fastest in which case; empty where their cases cannot be compared."""
    tables = [{case.case: case for case in parent.evaluation.cases} if parent.evaluation else {} for parent in parents]
    shared = [name for name in tables[0] if all(name in table for table in tables)]
    if not shared:
        return ""
    rows = [f"case | {' | '.join(f'{title} us' for title in titles)} | fastest"]
    for name in shared:
        latencies = [table[name].latency_us for table in tables]
        best = titles[min(range(len(latencies)), key=latencies.__getitem__)]
        rows.append(f"{name} | {' | '.join(f'{latency:.4g}' for latency in latencies)} | {best}")
    return f"Which is faster where:\n\n{fenced(chr(10).join(rows))}"


def bounds(evaluation: Evaluation | None) -> tuple[str, ...]:
    """What limits a variant in its cases, the most frequent limit first; empty where nothing is known."""
    if evaluation is None:
        return ()
    found = [bound(case) for case in evaluation.cases if case.roofline_us > 0]
    return tuple(sorted(set(found), key=lambda name: (-found.count(name), name)))


def bound(case: CaseResult) -> str:
    """``memory`` or ``compute`` where the latency is near that limit of the data sheet, else ``latency``.

    Latency stands for all that keeps a kernel from either limit: too few bytes in flight, waiting, launches, spills, shared memory.
    """
    memory, compute = case.memory_us / case.latency_us, case.compute_us / case.latency_us
    if memory >= MEMORY_NEAR and memory >= compute:
        return "memory"
    return "compute" if compute >= COMPUTE_NEAR else "latency"


def _limit(case: CaseResult) -> str:
    times = case.latency_us / case.roofline_us
    return f"{case.case} | {case.memory_us:.3g} | {case.compute_us:.3g} | {times:.2f} | {bound(case)}"


def _use(kernel: KernelUse) -> str:
    return (
        f"{kernel.kernel} | {kernel.programs} | {kernel.num_warps} | {kernel.registers} | {kernel.spill_bytes} | "
        f"{kernel.shared_bytes} | {kernel.occupancy:.0%}"
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
