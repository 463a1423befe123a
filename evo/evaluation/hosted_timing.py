"""Times hosted calls by the host's clock, so that what saves time also has to be done. See `evo.evaluation.hosted_host`."""

from __future__ import annotations

import math
import random
import statistics
import time

import torch

from evo.errors import DeviceError
from evo.evaluation.failed import Failed
from evo.evaluation.hosted_checks import failed, read, refuse_changes
from evo.evaluation.hosted_sides import HostedWork, Side, Sides
from evo.evaluation.judge import Judge
from evo.evaluation.tier import Timing
from evo.records import Failure, Stage, Status
from evo.tasks.base import Case
from evo.tasks.draws import Draw

BATCH_BYTES = 512 << 20
MIN_BATCH, MAX_BATCH = 8, 64
"""Input sets per timed request: as many as `BATCH_BYTES` hold, within these."""
JUDGED_SETS = 8
"""Sets of each timed request that are judged: work left out in one set of 64, every time, is found within 16 pairs with 88 %."""
INTERPRETED_BATCH = 3
CALIBRATIONS = 9
QUIET_FILLS = 32
SLOW = 2.0
EARLY_PAIRS = 8
LEAST_SHARE = 0.1
"""Of a request's time at least this share is taken to be the candidate's, whatever asking a module that does nothing took."""


class Stopwatch:
    """Owns no process; its sides belong to the host.

    Args:
        sides: Whose processes are timed.
        judge: Judges outputs of timed calls.
    """

    def __init__(self, sides: Sides, judge: Judge) -> None:
        self._sides = sides
        self._judge = judge
        self._random = random.SystemRandom()
        self._generator = torch.Generator().manual_seed(self._random.randrange(1 << 62))
        self._nothing_s: dict[tuple[str, str, int], float] = {}
        self._slow_fills = 0
        self._quiet_s = math.inf
        self._scrub: torch.Tensor | None = None
        if sides.device == "cuda":
            nbytes = 2 * int(torch.cuda.get_device_properties(0).L2_cache_size)
            self._scrub = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
            self._quiet_s = statistics.median(self._fill_seconds() for _ in range(CALIBRATIONS))

    def latency_us(self, work: HostedWork, case: str, calls: int, deadline_s: float) -> float:
        """Median of a few timed requests, whose outputs are judged.

        Raises:
            Failed: The module fails.
        """
        task = self._sides.task(work.task)
        described = task.case(case)
        count = self._batch(described)
        nothing_s = self._nothing(work.task, described, count, deadline_s)
        side = self._warm("candidate", work, described, count, deadline_s)
        times = [self._timed(side, described, self._draws(count), nothing_s, judged=True) for _ in range(calls)]
        return statistics.median(times)

    def compare(
        self, work: HostedWork, baseline: HostedWork, case: str, pairs: int, incumbent: float, deadline_s: float
    ) -> Timing:
        """Times both in random order, pair by pair, on the same values. After `EARLY_PAIRS` pairs it stops where even the best pair is
        below `incumbent`.

        Raises:
            Failed: The candidate fails.
            DeviceError: The baseline does, which passed before.
        """
        task = self._sides.task(work.task)
        described = task.case(case)
        count = self._batch(described)
        nothing_s = self._nothing(work.task, described, count, deadline_s)
        mine: list[float] = []
        other: list[float] = []
        ours = self._warm("candidate", work, described, count, deadline_s)
        try:
            theirs = self._baseline(baseline, described, count, deadline_s)
            ours.process.freeze()
            self._slow_fills = 0
            for _ in range(pairs):
                draws = self._draws(count)
                first = self._random.random() < 0.5
                for is_candidate in (first, not first):
                    if is_candidate:
                        mine.append(self._timed(ours, described, draws, nothing_s, judged=True))
                    else:
                        other.append(self._timed_baseline(theirs, described, draws, nothing_s))
                if len(mine) == EARLY_PAIRS and incumbent and max(b / a for a, b in zip(mine, other, strict=True)) < incumbent:
                    break
        finally:
            self._sides.shut("baseline")
        if self._slow_fills > max(3, len(mine) // 4):
            text = "the device was busy between calls: a module's work ends with its call (or others are using this GPU)"
            raise failed(Status.REJECTED, Stage.TIME, text, "busy device")
        ratios = tuple(math.log(b / a) for a, b in zip(mine, other, strict=True))
        return Timing(statistics.median(mine), statistics.median(other), ratios)

    def _timed(self, side: Side, case: Case, draws: list[Draw], nothing_s: float, *, judged: bool) -> float:
        """Microseconds per call of one request for all sets; the process is stopped before and after."""
        lending, process = side.present, side.process
        assert lending is not None
        if side.task.form == "module":
            lending.fill(draws, parameters_only=True)
            process.thaw()
            process.ask("prepare")
        process.freeze()
        lending.fill(draws)
        order = self._random.sample(range(len(draws)), len(draws))
        chosen = lending.sample(self._generator)
        self._slow_fills += self._fill_seconds() > SLOW * self._quiet_s
        started = time.perf_counter()
        process.thaw()
        process.ask("run", sets=order, watched=False)
        seen = lending.pieces(chosen)
        seconds = time.perf_counter() - started
        process.freeze()
        snapshot = lending.snapshot()
        process.thaw()
        answer = process.ask("describe")
        process.freeze()
        if not torch.equal(seen, lending.pieces(chosen, snapshot)):
            raise failed(Status.WRONG_VALUES, Stage.TIME, "outputs changed after a timed call had ended", "late outputs")
        if judged:
            outputs = read(lending, answer, order, snapshot)
            for number in self._random.sample(order, min(JUDGED_SETS, len(order))):  # chosen after the clock was read
                verdict = self._judge.judge(side.task, case, draws[number], outputs[number], Stage.TIME)
                if isinstance(verdict, Failure):
                    text = f"in a timed call: {verdict.message}"
                    raise Failed(Failure(verdict.status, Stage.TIME, text, verdict.signature))
            refuse_changes(side.task, lending, Stage.TIME)
        return max(seconds - nothing_s, LEAST_SHARE * seconds) / len(draws) * 1e6

    def _timed_baseline(self, side: Side, case: Case, draws: list[Draw], nothing_s: float) -> float:
        try:
            return self._timed(side, case, draws, nothing_s, judged=False)
        except Failed as error:
            raise DeviceError(f"the baseline of task {side.task.name} fails: {error.failure.message}") from error

    def _baseline(self, work: HostedWork, case: Case, count: int, deadline_s: float) -> Side:
        try:
            return self._warm("baseline", work, case, count, deadline_s)
        except Failed as error:
            raise DeviceError(f"the baseline cannot be hosted any more: {error.failure.message}") from error

    def _warm(self, name: str, work: HostedWork, case: Case, count: int, deadline_s: float) -> Side:
        """The side, with its sets lent and everything compiled that a first call compiles."""
        side = self._sides.open(name, work, deadline_s)
        side.process.thaw()
        self._sides.lend(side, case, count)
        side.fill(self._draws(count))
        side.process.ask("run", sets=list(range(count)), watched=False)
        side.process.freeze()
        return side

    def _nothing(self, task: str, case: Case, count: int, deadline_s: float) -> float:
        """Seconds of a request to a module that does nothing: dialogue, waking, and what is lent in copies."""
        key = (task, case.name, count)
        if key not in self._nothing_s:
            entry = self._sides.task(task).entry
            work = HostedWork(task, f"def {entry}(*arguments):\n    return None\n", {}, does_nothing=True)
            try:
                side = self._baseline(work, case, count, deadline_s)
                times = [self._timed(side, case, self._draws(count), 0.0, judged=False) for _ in range(CALIBRATIONS)]
            finally:
                self._sides.shut("baseline")
            self._nothing_s[key] = statistics.median(times) * count / 1e6
        return self._nothing_s[key]

    def _draws(self, count: int) -> list[Draw]:
        return [Draw(self._random.randrange(1 << 48)) for _ in range(count)]

    def _batch(self, case: Case) -> int:
        """Input sets per timed request."""
        if self._scrub is None:
            return INTERPRETED_BATCH
        return max(MIN_BATCH, min(MAX_BATCH, BATCH_BYTES // case.bytes))

    def _fill_seconds(self) -> float:
        """Overwrites the L2 cache; a device on which nothing else runs takes the same time for it every time."""
        if self._scrub is None:
            return 0.0
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(QUIET_FILLS):
            self._scrub.zero_()
        torch.cuda.synchronize()
        return time.perf_counter() - started
