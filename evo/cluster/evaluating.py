"""The evaluator's actor: pulls leased work, evaluates it one by one, reports each verdict at once."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from evo.cluster.processes import die_with_parent, forget_keys
from evo.cluster.setup import load_tasks
from evo.cluster.spec import RunSpec
from evo.errors import DeviceError, OtherDeviceError
from evo.evaluation.base import Evaluator
from evo.registry import evaluator_factory
from evo.search.leases import Lease

WAIT_S = 5.0
"""How long a request for work is held open by the engine."""

BATCH_S = 1.0
"""An evaluator takes about this much work at a time, so that slow evaluations are spread and fast ones are batched."""

MAX_BATCH = 16

SHORTAGES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE})
"""Of disks and files: errors of the machine, which no variant is blamed for."""


class EvaluatorActor:
    """Runs as a Ray actor; `work` is one long call. Its tracers and compilers are processes below it, so on the same node.

    Args:
        name: Of the worker, for leases; nobody has had it before, or will have it later.
        cores: See `EvaluationSettings.cores`.
    """

    def __init__(self, name: str, cores: int | None = None) -> None:
        die_with_parent()
        self._name = name
        self._cores = cores

    def work(self, engine: Any, spec: RunSpec) -> int:
        """Evaluates until the engine has no more work.

        Args:
            engine: Handle of the `EngineActor`.
            spec: The run.

        Returns:
            How many verdicts were accepted.

        Raises:
            DeviceError: The device is unusable, or of another model than the run's.
        """
        forget_keys(spec.config)
        self._engine = engine
        evaluator = _build(spec, self._cores)
        try:
            with self._heartbeat(spec.config.search.lease_s / 3), ThreadPoolExecutor(evaluator.concurrency) as threads:
                failed = threading.Event()
                loops = [threads.submit(self._loop, evaluator, failed) for _ in range(evaluator.concurrency)]
                return sum(loop.result() for loop in loops)
        finally:
            evaluator.close()

    def _loop(self, evaluator: Evaluator, failed: threading.Event) -> int:
        """Pulls and evaluates. Where one loop fails, all end after what they have in hand: the heartbeat renews every lease of this
        worker, so what the failed loop held would wait for nobody as long as the others went on."""
        try:
            return self._pull(evaluator, failed)
        except BaseException:
            failed.set()
            raise

    def _pull(self, evaluator: Evaluator, failed: threading.Event) -> int:
        accepted, pace = 0, BATCH_S
        while not failed.is_set():
            count = min(MAX_BATCH, max(1, round(BATCH_S / pace)))
            answer = self._get(self._engine.ask_evaluations.remote(self._name, count, evaluator.device, WAIT_S))
            if answer.refused:
                raise OtherDeviceError(answer.refused)
            if answer.done:
                return accepted
            for lease in answer.items:
                if failed.is_set():
                    break
                started = time.monotonic()
                accepted += self._evaluate(evaluator, lease)
                pace = 0.5 * pace + 0.5 * max(time.monotonic() - started, 1e-3)
        return accepted

    def _evaluate(self, evaluator: Evaluator, lease: Lease) -> bool:
        try:
            evaluation = evaluator.evaluate(lease.item, self._claim)
        except OSError as error:  # what candidates do comes as a verdict, never so
            if error.errno not in SHORTAGES:
                raise
            raise DeviceError(f"this machine is short of something: {error}") from error
        (accepted,) = self._get(self._engine.tell_evaluations.remote(self._name, ((lease.token, evaluation),)))
        return bool(accepted)

    def _claim(self, plan_hash: str, variant_id: str) -> str | None:
        (owner,) = self._get(self._engine.claims.remote(((plan_hash, variant_id),)))
        return None if owner is None else str(owner)

    @contextlib.contextmanager
    def _heartbeat(self, interval_s: float) -> Iterator[None]:
        """Renews the leases from a thread of its own while the evaluator works (its children have deadlines of their own)."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(interval_s):
                self._engine.renew.remote(self._name)

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    @staticmethod
    def _get(reference: Any) -> Any:
        import ray

        return ray.get(reference)


def _build(spec: RunSpec, cores: int | None) -> Evaluator:
    config = spec.config
    settings = dataclasses.replace(config.evaluation, target=config.target, seed=config.seed, cores=cores)
    return evaluator_factory(config.evaluator)(load_tasks(config), settings, spec.device)
