"""Which good kernels of elsewhere an operator is shown as examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from evo.records import Request
from evo.search.state import TaskState
from operators.base import Example
from operators.retrieval import most_similar

BEST_OF_ISLAND = 2
"""Members taken of each island of another task of the run."""


def examples_for(state: TaskState, request: Request, others: Iterable[TaskState]) -> tuple[Example, ...]:
    """The kernels most similar to the main parent (or to the reference, without one), of the run's other tasks and of its library.

    Args:
        state: Of the task at hand, whose own variants are shown as history.
        request: What the operator is asked.
        others: States of the run's other tasks.
    """
    setup = state.setup
    query = state.archive.variant(request.parents[0]).source if request.parents else setup.context.reference_source
    candidates = [*_of_run(others), *setup.library]
    return most_similar(query, candidates, (setup.context.reference_source, *setup.held_out)) if candidates else ()


def _of_run(others: Iterable[TaskState]) -> Iterator[Example]:
    for other in others:
        for island in other.islands:
            for member in island.ranked()[:BEST_OF_ISLAND]:
                source = other.archive.variant(member.variant_id).source
                yield Example(source, f"task {other.name} of this run", member.score)
