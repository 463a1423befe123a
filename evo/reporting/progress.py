"""What a person sees while a run goes on: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from evo.records import LatencyKind
from evo.reporting.status import KIND_WORDS, spent_line
from evo.search.progress import Progress, TaskProgress

LINE_EVERY_S = 5.0
"""Time between two plain lines, unless something improves."""

Observe = Callable[[Progress], None]


@contextlib.contextmanager
def progress_display(console: Console, kind: LatencyKind, clock: Callable[[], float] = time.monotonic) -> Iterator[Observe]:
    """A display for the duration of a `with` block; call what it yields with every new progress.

    Args:
        console: A terminal gets the live table, anything else plain lines.
        kind: What the latencies are; named beside them.
        clock: Monotonic seconds.
    """
    if not console.is_terminal:
        yield PlainLines(console, kind, clock)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda progress: live.update(live_table(progress, kind), refresh=True)


class PlainLines:
    """One line every few seconds, and one at each improvement of a task's best."""

    def __init__(self, console: Console, kind: LatencyKind, clock: Callable[[], float]) -> None:
        self._console = console
        self._kind = kind
        self._clock = clock
        self._best: dict[str, str] = {}
        self._failing: set[str] = set()
        self._printed_at: float | None = None

    def __call__(self, progress: Progress) -> None:
        """Prints what there is to say."""
        for task in progress.tasks:
            if task.best_variant and self._best.get(task.task) != task.best_variant:
                self._best[task.task] = task.best_variant
                self._print(f"{task.task}: best {_best(task, self._kind)}")
        for text in progress.failing:
            model = text.partition(" failed ")[0]
            if model not in self._failing:
                self._failing.add(model)
                self._print(text)
        now = self._clock()
        if self._printed_at is None or now - self._printed_at >= LINE_EVERY_S:
            self._printed_at = now
            self._print(f"{progress.phase}: {_figures(progress)}")

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def live_table(progress: Progress, kind: LatencyKind) -> Group:
    """The display of a terminal."""
    table = Table("task", "evaluated", "passed", "restarts", "front", "islands (best)", "best", box=None, header_style="bold")
    for task in progress.tasks:
        islands = " ".join(f"{island.best:.2f}" for island in task.islands)
        counts = (task.evaluations, task.passed, task.restarts, task.front)
        table.add_row(task.task, *map(str, counts), islands, _best(task, kind) if task.best_variant else "")
    failing = [Text(text, style="bold") for text in progress.failing]
    return Group(table, Text(f"{progress.phase}: {_figures(progress)}"), *failing)


def _best(task: TaskProgress, kind: LatencyKind) -> str:
    verified = ", verified" if task.verified else ""
    return (
        f"{task.best_speedup:.2f}× ({KIND_WORDS[kind]}{verified}), {task.best_latency_us:.2f} µs, "
        f"{task.best_variant[:8]} by {task.best_operator}"
    )


def _figures(progress: Progress) -> str:
    budget = {name: limit for name, limit in vars(progress.budget).items() if limit is not None}
    passed = sum(task.passed for task in progress.tasks)
    return (
        f"{spent_line(progress.spent, budget)}; {passed} passed, {progress.leased} in evaluation, {progress.lent} being proposed"
    )
