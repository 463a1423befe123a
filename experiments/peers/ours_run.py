"""Runs our engine on the trivial problem: python -m experiments.peers.ours_run CANDIDATES; goes on where a store is there."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import ray

from evo.cluster.engine_actor import EngineActor
from evo.cluster.evaluating import EvaluatorActor
from evo.cluster.proposing import ProposerActor
from evo.cluster.session import ray_session
from evo.cluster.spec import RunSpec
from evo.cluster.spending import SharedAccount
from evo.config import ClusterSection, RunConfig
from evo.evaluation.base import Claim, Evaluator, WorkItem
from evo.records import CaseResult, Configuration, Evaluation, LatencyKind, NoProposal, Proposal, Stage, Status, TrustLevel
from evo.search.settings import Budget, SearchSettings
from evo.search.setup import OperatorInfo, TaskSetup
from evo.search.toy import infos, toy_setup
from experiments.peers import trivial
from operators.base import Context, Operator, OperatorKind, Parent
from population_store.base import RunHeader

WORKERS = 4
TIMEOUT_S = 5.0
LOOK_S = 0.5


class Instant(Operator):
    """The model that answers at once."""

    name: ClassVar[str] = "instant"
    kind: ClassVar[OperatorKind] = OperatorKind.MUTATION

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """A module."""
        return Proposal(trivial.module(int(rng.integers(1, 1 << 60))), "n")


class Trivial(Evaluator):
    """The trivial evaluator; a candidate that hangs is given up at its deadline."""

    @property
    def device(self) -> str:
        """No device."""
        return "trivial"

    def evaluate(self, item: WorkItem, claim: Claim) -> Evaluation:
        """See `Evaluator.evaluate`."""
        number, variant_id = trivial.number_of(item.variant.source), item.variant.variant_id
        plan = f"plan {number}"
        claim(plan, variant_id)
        if number and trivial.hangs():
            time.sleep(TIMEOUT_S)
            return Evaluation(variant_id, Status.TIMEOUT, Stage.GATE, self.device, plan, message="hangs", signature="hangs")
        trivial.finished(number)
        fitness = 1.0 if item.baseline is None else 0.5 + trivial.score(number)
        case = CaseResult("only", Configuration(), 0.5, 100 / fitness, 100.0, fitness, fitness, fitness, 0, 0)
        return Evaluation(
            variant_id,
            Status.PASSED,
            Stage.TIME,
            self.device,
            plan,
            TrustLevel.INTERPRETED,
            LatencyKind.SIMULATED,
            fitness=fitness,
            cases=(case,),
        )

    def close(self) -> None:
        """Nothing is open."""


def build(tasks: object, settings: object, device: str) -> Evaluator:
    """For `evaluator:` of a configuration."""
    return Trivial()


class TrivialEngine(EngineActor):
    """Of the trivial problem."""

    def _setups(self) -> tuple[tuple[TaskSetup, ...], tuple[OperatorInfo, ...]]:
        return (toy_setup(starts=(trivial.module(0),)),), infos((Instant(),))


class TrivialProposer(ProposerActor):
    """With the instant model."""

    def _operators(self, spec: RunSpec, account: SharedAccount) -> Mapping[str, Mapping[str, Operator]]:
        return {Instant.name: {"": Instant()}}


def main(candidates: int) -> None:
    """Searches, or goes on."""
    store = trivial.folder() / "out.sqlite"
    config = RunConfig(
        name="trivial",
        tasks=("softmax",),
        target="cuda:90",
        evaluator="experiments.peers.ours_run:build",
        budget=Budget(evaluations=candidates),
        search=SearchSettings(verify_elites=0, pending_limit=128),
        cluster=ClusterSection(device="cpu", requests_in_hand=32),
    )
    header = None if store.exists() else RunHeader("trivial", 0, "{}", '{"toy": ""}', "{}", "2026-01-01T00:00:00+00:00")
    spec = RunSpec(config, str(store), header, "trivial")
    with ray_session(ClusterSection()):
        options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": 10_000}
        engine = ray.remote(TrivialEngine).options(**options).remote(spec)
        ray.get(engine.open.remote())
        life = time.monotonic_ns()  # a worker's name is never used again
        workers = [ray.remote(EvaluatorActor).options(num_cpus=0).remote(f"evaluator-{life}-{place}") for place in range(WORKERS)]
        workers.append(ray.remote(TrivialProposer).options(**options).remote(f"proposer-{life}"))
        works = [worker.work.remote(engine, spec) for worker in workers]
        while works:
            done, works = ray.wait(works, timeout=LOOK_S)
            ray.get(done)
            ray.get(engine.progress.remote())
        ray.get(engine.close.remote())


if __name__ == "__main__":
    main(int(sys.argv[1]))
