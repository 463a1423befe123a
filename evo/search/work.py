"""Turns decisions into work that others can do without the engine: proposals with context, evaluations with hints."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from evo.evaluation.base import Effort, WorkItem
from evo.records import Configuration, Request
from evo.search.archive import Kin, Note
from evo.search.state import TaskState
from operators.base import Context, Example, Parent

HINTS = 4
"""Configurations of relatives handed to tuning, at most."""


@dataclass(frozen=True)
class ProposalWork:
    """One proposal to make.

    Attributes:
        request: The decision, already recorded.
        parents: As many as the operator's arity.
        context: See `operators.base.Context`.
        seed: The operator's randomness is ``np.random.default_rng(seed)``.
    """

    request: Request
    parents: tuple[Parent, ...]
    context: Context
    seed: tuple[int, int]


def proposal_work(state: TaskState, request: Request, seed: int, examples: tuple[Example, ...] = ()) -> ProposalWork:
    """What a proposer needs for a request; `examples` as `evo.search.examples` finds them."""
    parents = tuple(state.archive.parent(variant_id) for variant_id in request.parents)
    context = dataclasses.replace(
        state.setup.context,
        history=_history(state, request),
        tabu=tuple(state.tabu),
        lessons=tuple(state.lineage_of(request).lessons),
        worked=tuple(state.worked),
        examples=examples,
        request=request.number,
    )
    return ProposalWork(request, parents, context, (seed, request.number))


def search_item(state: TaskState, number: int) -> WorkItem:
    """What an evaluator needs for a new variant."""
    note = state.archive[state.awaiting[number]]
    variant = state.archive.variant(note.variant_id)
    if note.is_start:
        return WorkItem(number, variant, None)
    best = state.best()
    return WorkItem(
        number,
        variant,
        state.baseline,
        hints=_hints(state, note),
        incumbent=state.islands[note.request.island].entry_score,
        front=best.score if best is not None else 0.0,
    )


def verify_item(state: TaskState, note: Note) -> WorkItem:
    """What an evaluator needs to verify an elite, in the configurations the search chose."""
    variant = state.archive.variant(note.variant_id)
    return WorkItem(note.request.number, variant, state.baseline, Effort.VERIFY, chosen=note.chosen)


def to_verify(state: TaskState) -> tuple[Note, ...]:
    """The best elites of the Pareto front, by searched fitness, that were not verified yet.

    At most `verify_elites` verifications follow upon a search, also where some fail and others take their place on the front.
    """
    limit = state.settings.verify_elites
    front = sorted(
        (state.archive[point.variant_id] for point in state.front.points), key=lambda note: (-note.fitness, note.request.number)
    )
    waiting = [note for note in front[:limit] if note.verified is None]
    return tuple(waiting[: max(0, limit - state.verified_since_search)])


def _hints(state: TaskState, note: Note) -> tuple[Configuration, ...]:
    """What relatives were best in: the main parent, the best of the newest siblings, other parents; each one's first case before all
    second ones, since cases of one variant often want the same."""
    parents = [state.archive[variant_id] for variant_id in note.request.parents]
    siblings = sorted(parents[0].children, key=lambda item: -item.score) if parents else []
    relatives: list[Note | Kin] = [*parents[:1], *siblings, *parents[1:]]
    chosen = [tuple(dict.fromkeys(relative.chosen.values())) for relative in relatives]
    ranked = (configurations[place] for place in range(HINTS) for configurations in chosen if place < len(configurations))
    return tuple(dict.fromkeys(ranked))[:HINTS]


def _history(state: TaskState, request: Request) -> tuple[Parent, ...]:
    """The best other variants, of the lineage first, and its newest failures; ascending, failures by the stage they reached."""
    island = state.islands[request.island]
    limit = state.settings.history
    ranked = sorted(island.ranked(), key=lambda member: member.lineage != request.lineage)
    passed = [member for member in ranked if member.variant_id not in request.parents][:limit]
    passed.sort(key=lambda member: member.order, reverse=True)
    own = (item for item in island.failed.values() if item.lineage == request.lineage)
    newest = sorted((item for item in own if item.variant_id not in request.parents), key=lambda item: -item.number)[: limit // 3]
    failed = sorted(newest, key=lambda item: item.stage)
    chosen = [item.variant_id for item in failed] + [member.variant_id for member in passed]
    return tuple(state.archive.parent(variant_id) for variant_id in chosen[-limit:] if limit)
