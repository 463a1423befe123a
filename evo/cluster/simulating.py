"""A cluster of simulated devices around the real engine's actor: for measuring what a run costs besides its evaluations."""

from __future__ import annotations

import asyncio
import dataclasses
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray

from evo.cluster.engine_actor import EngineActor
from evo.cluster.processes import die_with_parent
from evo.cluster.proposing import ProposerActor
from evo.cluster.spec import Answer, RunSpec
from evo.cluster.spending import SharedAccount
from evo.config import RunConfig
from evo.evaluation.base import Effort
from evo.evaluation.simulated_device import DeviceRecord, SimulatedDevice
from evo.records import Spent
from evo.search.leases import Lease
from evo.search.setup import OperatorInfo, TaskSetup
from evo.search.toy import ToyStamp, infos, toy_setup
from operators.base import Operator
from population_store.base import RunHeader

WAIT_S = 5.0
"""How long a request for work is held open by the engine."""

BATCH = 10
"""Evaluations that a simulated evaluator takes at a time."""

IN_HAND = 256
"""Requests that the proposer works on at a time."""


def used_s() -> float:
    """CPU seconds of this process so far, in all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class StampEngineActor(EngineActor):
    """The engine's actor, of a run whose modules are numbered copies of one."""

    def _setups(self) -> tuple[tuple[TaskSetup, ...], tuple[OperatorInfo, ...]]:
        return (toy_setup(),), infos((ToyStamp(),))

    async def used(self) -> tuple[float, Spent]:
        """CPU seconds of the engine's process, and what is recorded."""
        return used_s(), self._engine.spent


class StampProposerActor(ProposerActor):
    """A proposer whose model answers at once."""

    def _operators(self, spec: RunSpec, account: SharedAccount) -> Mapping[str, Mapping[str, Operator]]:
        return {ToyStamp.name: {"": ToyStamp()}}

    async def used(self) -> float:
        """CPU seconds of this process."""
        return used_s()


class SimulatedEvaluators:
    """Many simulated evaluators in one process, each with a name, leases and a heartbeat of its own. Runs as an asyncio Ray actor.

    They follow the protocol of `evo.cluster.evaluating`, but take batches and hand in the verdicts of a batch together.

    Args:
        record: Of the device.
        seed: Of verdicts.
        pace: See `SimulatedDevice`.
    """

    def __init__(self, record: DeviceRecord, seed: int, pace: float) -> None:
        die_with_parent()
        self._device = SimulatedDevice(record, seed=seed, pace=pace)
        self._accepted = 0

    async def work(self, engine: Any, names: Sequence[str], lease_s: float) -> int:
        """Evaluates until the engine has no more work.

        Args:
            engine: Handle of the `EngineActor`.
            names: Of the evaluators.
            lease_s: See `SearchSettings`.

        Returns:
            How many verdicts were accepted.
        """
        heartbeat = asyncio.create_task(self._beat(engine, names, lease_s / 3))
        try:
            await asyncio.gather(*(self._evaluate(engine, name) for name in names))
        finally:
            heartbeat.cancel()
        return self._accepted

    async def used(self) -> float:
        """CPU seconds of this process."""
        return used_s()

    async def _evaluate(self, engine: Any, name: str) -> None:
        device = self._device
        while True:
            answer: Answer[Lease] = await engine.ask_evaluations.remote(name, BATCH, device.device, WAIT_S)
            if answer.done:
                return
            items = [lease.item for lease in answer.items]
            searched = [(device.plan_hash(item), item.variant.variant_id) for item in items if item.effort is Effort.SEARCH]
            owners = dict(zip([variant_id for _, variant_id in searched], await engine.claims.remote(searched), strict=True))
            await asyncio.sleep(sum(map(device.seconds, items)))
            verdicts = [
                (lease.token, device.verdict(lease.item, owners.get(lease.item.variant.variant_id))) for lease in answer.items
            ]
            if verdicts:
                accepted = await engine.tell_evaluations.remote(name, verdicts)
                self._accepted += sum(accepted)

    @staticmethod
    async def _beat(engine: Any, names: Sequence[str], interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            for name in names:
                await engine.renew.remote(name)


@dataclasses.dataclass(frozen=True)
class Usage:
    """CPU seconds of the processes of a simulated run, and what it has recorded, at one moment."""

    engine: float
    proposer: float
    evaluators: float
    driver: float
    spent: Spent


class SimulatedCluster:
    """A run with simulated evaluators on the Ray that is connected.

    Args:
        store: Path of the store to create.
        header: Of the store.
        evaluators: How many.
        record, seed, pace: See `SimulatedEvaluators`.
    """

    def __init__(self, store: str, header: RunHeader, evaluators: int, record: DeviceRecord, seed: int, pace: float) -> None:
        config = RunConfig(name=header.name, seed=seed, tasks=("toy",), target="cuda:90")
        search = dataclasses.replace(config.search, pending_limit=2 * BATCH * evaluators + IN_HAND)
        cluster = config.cluster.model_copy(update={"requests_in_hand": IN_HAND})
        config = config.model_copy(update={"search": search, "cluster": cluster})
        spec = RunSpec(config, store, header, "simulated")
        options = {"num_cpus": 0, "max_concurrency": 10_000}
        self.engine = ray.remote(StampEngineActor).options(**options).remote(spec)
        ray.get(self.engine.open.remote())
        self._proposer = ray.remote(StampProposerActor).options(**options).remote("proposer-0")
        self._evaluators = ray.remote(SimulatedEvaluators).options(**options).remote(record, seed, pace)
        names = [f"evaluator-{number}" for number in range(evaluators)]
        self._works = [
            self._proposer.work.remote(self.engine, spec),
            self._evaluators.work.remote(self.engine, names, search.lease_s),
        ]

    def usage(self) -> Usage:
        """At this moment."""
        engine, spent = ray.get(self.engine.used.remote())
        proposer, evaluators = ray.get([self._proposer.used.remote(), self._evaluators.used.remote()])
        return Usage(engine, proposer, evaluators, used_s(), spent)

    def look(self) -> None:
        """What a driver does twice a second.

        Raises:
            Exception: What ended the run, or a worker.
        """
        ray.get(self.engine.progress.remote())
        done, _ = ray.wait(self._works, num_returns=1, timeout=0)
        ray.get(done)

    def end(self) -> int:
        """Stops the run and waits for what is in hand; how many verdicts were accepted."""
        ray.get(self.engine.stop.remote("the measurement is over"))
        _, accepted = ray.get(self._works)
        ray.get(self.engine.close.remote())
        return int(accepted)

    def kill(self) -> None:
        """Ends its processes."""
        for actor in (self._proposer, self._evaluators, self.engine):
            ray.kill(actor, no_restart=True)


@contextmanager
def simulated_cluster(
    store: str, header: RunHeader, evaluators: int, record: DeviceRecord, seed: int, pace: float
) -> Iterator[SimulatedCluster]:
    """A `SimulatedCluster` for the length of a block."""
    cluster = SimulatedCluster(store, header, evaluators, record, seed, pace)
    try:
        yield cluster
    finally:
        cluster.kill()
