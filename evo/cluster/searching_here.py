"""Runs a whole search in this process, on an evaluator that is there already: what a suite's many short searches share their device by.

Engine, operators and records are on one event loop; evaluations are in threads. The store is an ordinary one: `triton-evolve status`
shows it while it is searched, and `resume` or a second call goes on with it. Elites are verified one after the other, until one passes: a
verification holds the device longest of all.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Executor

from evo.cluster.proposing import propose
from evo.cluster.proposing_here import StoredAccount
from evo.cluster.setup import build_models, operator_infos, operators_asking, task_setups
from evo.cluster.spending import buckets_of, endpoint_of
from evo.config import RunConfig
from evo.errors import SpendLimitError
from evo.evaluation.base import Effort, Evaluator
from evo.records import Evaluation, NoProposal, Proposal, Status
from evo.search.engine import Engine
from evo.search.leases import Lease
from operators.models.limits import LocalLimiter
from population_store.base import PopulationStore

LOOK_S = 0.5
"""How often interruptions are looked for, and leases renewed."""
VERIFIED = "the search is over, and its best variant is verified"
AT_ONCE = 4
"""Variants of one search that are evaluated side by side; other searches have the device meanwhile."""


def search_here(
    config: RunConfig, store: PopulationStore, evaluator: Evaluator, threads: Executor, interrupted: Callable[[], str | None]
) -> str:
    """Searches until the budget is used, or an interruption.

    Args:
        config: With the target resolved; its tasks were checked, and the evaluator knows them.
        store: Open for writing.
        evaluator: May serve other searches at the same time.
        threads: Evaluations run there.
        interrupted: Polled; once it returns a reason, nothing more is begun, and what is in hand is recorded.

    Returns:
        Why it ended.

    Raises:
        InputError: A task, operator or model cannot be used.
        DeviceError: The device is unusable.
    """
    return asyncio.run(_Search(config, store, evaluator, threads).run(interrupted))


class _Search:
    """One search; its methods run on one event loop."""

    def __init__(self, config: RunConfig, store: PopulationStore, evaluator: Evaluator, threads: Executor) -> None:
        self._config, self._evaluator, self._threads = config, evaluator, threads
        self._engine = Engine(
            seed=config.seed,
            settings=config.search,
            budget=config.budget,
            tasks=task_setups(config, check=False),
            operators=operator_infos(config),
            store=store,
            clock=time.monotonic,
            models=list(config.model_labels),
        )
        limiters = {endpoint: LocalLimiter(bucket) for endpoint, bucket in buckets_of(config).items()}
        account = StoredAccount(config, self._engine)
        self._models = build_models(config, account, lambda section: limiters[endpoint_of(section)])
        self._operators = operators_asking(config, self._models)
        self._proposing: dict[asyncio.Future[Proposal | NoProposal], int] = {}
        self._evaluating: dict[asyncio.Future[Evaluation], Lease] = {}
        self._verified = False

    async def run(self, interrupted: Callable[[], str | None]) -> str:
        """See `search_here`."""
        engine, stopped = self._engine, ""
        try:
            while True:
                if not stopped and (reason := interrupted()) is not None:
                    stopped = reason
                    engine.stop(reason)
                if self._verified and not stopped:
                    stopped = VERIFIED
                    engine.stop(stopped)
                begun = self._begin()
                if not begun and (finished := engine.finished) is not None:
                    return stopped or finished
                if not self._running:
                    await asyncio.sleep(LOOK_S)
                    continue
                done, _ = await asyncio.wait(self._running, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                engine.renew([*self._proposing.values(), *(lease.token for lease in self._evaluating.values())])
                self._record(done)
        finally:
            for future in self._proposing:
                future.cancel()
            # Evaluations cannot be ended; what they say is waited for, so that the device is free when this returns.
            await asyncio.gather(*self._running, return_exceptions=True)
            for model in self._models.values():
                await model.close()
            if (finished := engine.finished) is not None:
                with contextlib.suppress(Exception):  # the store failed, which is what is told
                    engine.stop(finished)

    @property
    def _running(self) -> set[asyncio.Future[object]]:
        return {*self._proposing, *self._evaluating}  # type: ignore[arg-type]

    def _begin(self) -> bool:
        """Begins what there is room for; whether anything."""
        loop, engine = asyncio.get_running_loop(), self._engine
        before = len(self._evaluating)
        while len(self._evaluating) < AT_ONCE and not self._verifying:
            for lease in (leases := engine.ask_evaluations(1, self._evaluator.device)):
                future = loop.run_in_executor(self._threads, self._evaluator.evaluate, lease.item, self._claim(loop))
                self._evaluating[future] = lease
            if not leases:
                break
        works = engine.ask_proposals(self._config.cluster.requests_in_hand - len(self._proposing))
        for work in works:
            self._proposing[asyncio.ensure_future(propose(self._operators, work))] = work.request.number
        return bool(len(self._evaluating) > before or works)

    @property
    def _verifying(self) -> bool:
        return any(lease.item.effort is Effort.VERIFY for lease in self._evaluating.values())

    def _claim(self, loop: asyncio.AbstractEventLoop) -> Callable[[str, str], str | None]:
        async def claimed(plan_hash: str, variant_id: str) -> str | None:
            return self._engine.claim(plan_hash, variant_id)

        return lambda plan_hash, variant_id: asyncio.run_coroutine_threadsafe(claimed(plan_hash, variant_id), loop).result()

    def _record(self, done: set[asyncio.Future[object]]) -> None:
        for future in [item for item in self._evaluating if item in done]:
            lease = self._evaluating.pop(future)
            evaluation = future.result()
            if self._engine.tell_evaluation(lease.token, evaluation) and lease.item.effort is Effort.VERIFY:
                self._verified |= evaluation.status is Status.PASSED
        for work in sorted((item for item in self._proposing if item in done), key=self._proposing.__getitem__):
            number = self._proposing.pop(work)
            try:
                self._engine.tell_proposal(number, work.result())
            except SpendLimitError as error:
                self._engine.cannot_pay(number, str(error))
