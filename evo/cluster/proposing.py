"""The proposer's actor: pulls requests, runs operators (several at once, where they wait for a model), reports what came of each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np

from evo.cluster.processes import die_with_parent
from evo.cluster.setup import build_operators
from evo.cluster.spec import Answer, RunSpec
from evo.cluster.spending import SharedAccount, SharedLimiter, endpoint_of
from evo.errors import ModelError, SpendLimitError
from evo.records import NoProposal, Proposal
from evo.search.chains import parts_of
from evo.search.engine import ProposalWork
from operators.base import Operator
from operators.chaining import Chain, is_chainable

WAIT_S = 5.0
"""How long a request for work is held open by the engine."""


class ProposerActor:
    """Runs as an asyncio Ray actor; `work` is one long call.

    Args:
        name: Of the worker; nobody has had it before, or will have it later.
    """

    def __init__(self, name: str) -> None:
        die_with_parent()
        self._name = name

    async def work(self, engine: Any, spec: RunSpec) -> int:
        """Proposes until the engine has no more requests.

        Args:
            engine: Handle of the `EngineActor`.
            spec: The run.

        Returns:
            How many requests were answered.

        Raises:
            InputError: A model cannot be used as configured.
        """
        self._engine = engine
        self._outcomes: list[tuple[int, Proposal | NoProposal]] = []
        self._teller: asyncio.Task[None] | None = None
        self._in_hand = spec.config.cluster.requests_in_hand
        life: int = await engine.life.remote(self._name)
        account = SharedAccount(engine, self._name, life, spec.config.budget.dollars)
        operators = self._operators(spec, account)
        heartbeat = asyncio.create_task(self._beat(spec.config.search.lease_s / 3))
        try:
            return await self._pull(operators)
        finally:
            heartbeat.cancel()

    def _operators(self, spec: RunSpec, account: SharedAccount) -> Mapping[str, Mapping[str, Operator]]:
        """By name, and each by label of its model."""
        return build_operators(spec.config, account, lambda section: SharedLimiter(self._engine, endpoint_of(section)))

    async def _pull(self, operators: Mapping[str, Mapping[str, Operator]]) -> int:
        answered = 0
        running: set[asyncio.Task[None]] = set()
        while True:
            room = self._in_hand - len(running)
            answer: Answer[ProposalWork] = await self._engine.ask_proposals.remote(self._name, room, WAIT_S)
            running |= {asyncio.create_task(self._propose(operators, work)) for work in answer.items}
            if answer.done:
                await asyncio.gather(*running)
                return answered + len(running)
            if len(running) >= self._in_hand:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            done = {task for task in running if task.done()}
            running -= done
            answered += len(done)
            for task in done:
                task.result()

    async def _propose(self, operators: Mapping[str, Mapping[str, Operator]], work: ProposalWork) -> None:
        try:
            outcome = await propose(operators, work)
        except SpendLimitError as error:
            await self._engine.cannot_pay.remote(self._name, work.request.number, str(error))
            return
        self._outcomes.append((work.request.number, outcome))
        if self._teller is None or self._teller.done():
            self._teller = asyncio.create_task(self._deliver())
        await asyncio.shield(self._teller)

    async def _deliver(self) -> None:
        """Tells what came of requests; of those that ended while it told, all at once."""
        await asyncio.sleep(0)  # operators that wait for nothing end together
        while self._outcomes:
            outcomes, self._outcomes = self._outcomes, []
            await self._engine.tell_proposals.remote(self._name, outcomes)

    async def _beat(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self._engine.renew.remote(self._name)


async def propose(operators: Mapping[str, Mapping[str, Operator]], work: ProposalWork) -> Proposal | NoProposal:
    """Runs one operator on one request, with randomness from the request's seed only.

    Args:
        operators: By name, and each by label of its model. A request for a label that is not there (the configuration changed, or the
            request was made before requests named models) goes to one drawn from the seed.
        work: The request.

    Raises:
        SpendLimitError: Nothing more should be asked.
    """
    rng = np.random.default_rng(work.seed)
    labelled = operators.get(work.request.operator) or _chained(operators, parts_of(work.request.operator))
    if not labelled:
        return NoProposal(f"there is no operator {work.request.operator} in this version", failed=True)
    operator = labelled.get(work.request.model) or list(labelled.values())[int(rng.integers(len(labelled)))]
    try:
        return await operator.propose(work.parents, work.context, rng)
    except SpendLimitError:
        raise
    except ModelError as error:
        return NoProposal(str(error), failed=True)
    except Exception as error:  # noqa: BLE001  ours to mend, but the other requests in hand must not pay for it
        return NoProposal(f"{work.request.operator} crashed: {type(error).__name__}: {error}"[:500], failed=True)


def _chained(operators: Mapping[str, Mapping[str, Operator]], parts: tuple[str, ...]) -> Mapping[str, Operator]:
    """The chain of some operators by the label of no model; empty where one of them is unknown, or asks a model."""
    found = [operators.get(part, {}).get("") for part in parts]
    known = [operator for operator in found if operator is not None]
    return {"": Chain(known)} if len(known) == len(parts) > 1 and all(map(is_chainable, known)) else {}
