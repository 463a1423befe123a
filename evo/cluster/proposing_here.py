"""Makes proposals in this process alone, without Ray and without an evaluator: what a machine does that has a model and no GPU."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping

from evo.cluster.proposing import propose
from evo.cluster.setup import build_models, operators_asking
from evo.cluster.spending import Reserved, Spending, buckets_of, endpoint_of
from evo.config import RunConfig
from evo.errors import SpendLimitError
from evo.records import NoProposal, Proposal
from evo.search.engine import Engine
from evo.search.progress import Progress
from operators.models.ledger import Reservation
from operators.models.limits import LocalLimiter, new_ticket

LOOK_S = 0.5
"""How often interruptions are looked for while replies are waited for."""

INTERRUPT_GRACE_S = 10.0
"""How long a reply that is under way, and paid for, is waited for after Ctrl-C."""

_WORKER = "propose"


class StoredAccount:
    """The run's budget, every reservation in the store before it is granted: an `operators.models.ledger.Account`.

    Args:
        config: Of the run.
        engine: Owns the store.
    """

    def __init__(self, config: RunConfig, engine: Engine) -> None:
        self._spending = Spending(config, engine.spent, engine.spend_up_to, engine.events, engine.note_batch)
        self._cap = config.budget.dollars

    @property
    def cap(self) -> float | None:
        """The limit in dollars, None for none."""
        return self._cap

    async def reserve(self, dollars: float, tokens: int) -> Reserved:
        """See `operators.models.ledger.Account.reserve`."""
        name = new_ticket()
        refusal = await self._spending.reserve(_WORKER, 0, name, dollars, tokens)
        if refusal:
            raise SpendLimitError(refusal)
        return Reserved(name, dollars, tokens, self._spending.settle)

    async def sent(self, batch: str, requests: Mapping[str, Reservation]) -> None:
        """See `operators.models.ledger.Account.sent`."""
        self._spending.sent(batch, {request: item.name for request, item in requests.items() if isinstance(item, Reserved)})

    async def regain(self, request: str) -> tuple[str, Reserved] | None:
        """See `operators.models.ledger.Account.regain`."""
        name = new_ticket()
        known = self._spending.regain(_WORKER, 0, name, request)
        return None if known is None else (known[0], Reserved(name, *known[1:], self._spending.settle))


async def make_proposals(engine: Engine, config: RunConfig, wanted: int, interrupted: Callable[[], str | None]) -> str:
    """Makes proposals until so many variants await evaluation, each recorded as soon as it is there.

    Args:
        engine: Of the run.
        config: Of the run.
        wanted: Variants without an evaluation, those of earlier calls included.
        interrupted: Polled; once it returns a reason, nothing more is asked.

    Returns:
        Why there are fewer; empty if there are not.

    Raises:
        InputError: A model cannot be used as configured, or its key is missing.
    """
    limiters = {endpoint: LocalLimiter(bucket) for endpoint, bucket in buckets_of(config).items()}
    models = build_models(config, StoredAccount(config, engine), lambda section: limiters[endpoint_of(section)])
    operators = operators_asking(config, models)
    in_hand = config.cluster.requests_in_hand * config.cluster.proposers
    running: dict[asyncio.Task[Proposal | NoProposal], int] = {}
    stopped, patience_ends = "", math.inf
    try:
        while True:
            if (reason := interrupted()) is not None and patience_ends == math.inf:
                stopped, patience_ends = reason, time.monotonic() + INTERRUPT_GRACE_S
            missing = wanted - _awaiting(engine.progress()) - len(running)
            if not stopped and missing > 0:
                for work in engine.ask_proposals(min(missing, in_hand - len(running))):
                    running[asyncio.create_task(propose(operators, work))] = work.request.number
            if not running or time.monotonic() > patience_ends:
                return stopped or (_why(engine.progress()) if missing > 0 else "")
            done, _ = await asyncio.wait(running, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            engine.renew(running.values())
            for task in sorted(done, key=running.__getitem__):
                stopped = _record(engine, running.pop(task), task) or stopped
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for model in models.values():
            await model.close()


def _record(engine: Engine, number: int, task: asyncio.Task[Proposal | NoProposal]) -> str:
    """Records what came of a request; why nothing more may be asked, if so."""
    try:
        engine.tell_proposal(number, task.result())
    except SpendLimitError as error:
        engine.cannot_pay(number, str(error))
        return str(error)
    return ""


def _awaiting(progress: Progress) -> int:
    return sum(task.pending_evaluations for task in progress.tasks)


def _why(progress: Progress) -> str:
    """Why the engine asks for nothing more, in words for a person."""
    spent, budget, awaiting = progress.spent, progress.budget, _awaiting(progress)
    if any(task.evaluations == 0 and task.pending_evaluations for task in progress.tasks):
        return "the starting kernels must be evaluated first"
    if progress.failing:
        return "; ".join(progress.failing)
    used = {
        f"{budget.evaluations} evaluations": budget.evaluations is not None
        and spent.evaluations + awaiting >= budget.evaluations,
        f"{budget.dollars} dollars": budget.dollars is not None and spent.dollars >= budget.dollars,
        f"{budget.tokens} tokens": budget.tokens is not None and spent.tokens >= budget.tokens,
        f"{budget.wall_s} wall seconds": budget.wall_s is not None and spent.wall_s >= budget.wall_s,
        f"{budget.gpu_s} GPU seconds": budget.gpu_s is not None and spent.gpu_s >= budget.gpu_s,
    }
    for limit, reached in used.items():
        if reached:
            return f"the budget of {limit} is used"
    return "no operator knows of anything to try before more is evaluated"
