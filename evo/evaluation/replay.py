"""The replayed tier: plans run from binaries in a trusted GPU process and are judged in another; no candidate Python comes near either."""

from __future__ import annotations

import hashlib
import math
import secrets
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from evo.errors import DeviceError, WorkerDied, WorkerNotReady, WorkerOutOfMemory
from evo.evaluation.crew import REAL_PROCESSES, Crew, Processes
from evo.evaluation.health import Reading
from evo.evaluation.launchers import Launchers
from evo.evaluation.replay_faults import Faults
from evo.evaluation.replay_gate import Gate, requests, work_of
from evo.evaluation.replay_messages import Compared
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.statistics import NoiseFloor
from evo.evaluation.tier import Candidate, Checked, Sides, Tier, Timing
from evo.evaluation.worker import Nursery
from evo.records import Failure, LatencyKind, Stage, Status, TrustLevel
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw

T = TypeVar("T")

QUICK_REPLAYS = 7
AA_BLOCKS = 5
AA_PAIRS = 8
"""The A/A noise of a case: so many blocks, in the memory that the first blocks of a race use, of so many pairs."""
JUDGES = 2
"""Judging takes about as long as running, and a replay process can keep more than one judge at work."""


class ReplayTier(Tier):
    """One GPU. Input seeds are drawn when it is made and never leave the trusted processes. Checks may come from several threads:
    while one's outputs are judged, the next runs.

    Args:
        settings: Deadlines.
        processes: What its workers serve.
        nursery: Where they come from, if others use it too; without one it has its own.

    Raises:
        DeviceError: There is no usable GPU; or a BadDeviceError, it is not well.
    """

    def __init__(
        self, settings: EvaluationSettings, processes: Processes = REAL_PROCESSES, nursery: Nursery | None = None
    ) -> None:
        self._processes = processes
        self._nursery = nursery or Nursery()
        self._owns_nursery = nursery is None
        self._deadline_s = settings.run_deadline_s
        self._launchers = Launchers(self._nursery, self.clock)
        self._main = self._crew = Crew(
            self._nursery, self._deadline_s, self.clock, spare=True, processes=processes, judges=JUDGES
        )
        self._floors: dict[tuple[str, str], NoiseFloor] = {}
        self._secret = secrets.token_bytes(16)
        self._readings: deque[Reading] = deque(maxlen=1024)
        try:
            described = self._crew.start()
        except WorkerDied as error:
            self.close()
            raise DeviceError(f"no usable GPU: {error}") from error
        self._name = str(described["name"])
        self._identity = f"GPU {described['index']} ({self._name}, {described['uuid'] or 'no UUID'})"
        self.capability = "cuda:{}{}".format(*described["capability"])
        self._faults = Faults(self._identity, self._deadline_s)
        self._gate = Gate(self._faults, self._make_room)
        try:
            if not self.healthy():  # a device that an earlier session found bad must prove itself, as must any other
                self._faults.look_again(self._crew, "at its start")
        except DeviceError:
            self.close()
            raise

    @property
    def device(self) -> str:
        """The GPU's name."""
        return self._name

    @property
    def identity(self) -> str:
        """Index, name and UUID of the GPU."""
        return self._identity

    @property
    def trust(self) -> TrustLevel:
        """See `Tier`."""
        return TrustLevel.REPLAYED

    @property
    def latency_kind(self) -> LatencyKind:
        """See `Tier`."""
        return LatencyKind.MEASURED

    @property
    def gates_on_binaries(self) -> bool:
        """See `Tier`."""
        return True

    @property
    def gpu_s(self) -> float:
        """Seconds in which a process of this tier worked on the GPU."""
        return self.clock.device_s

    @property
    def overlaps(self) -> bool:
        """See `Tier`."""
        return True

    def gate_cases(self, task: Task) -> tuple[Case, ...]:
        """Small cases, then training cases."""
        return task.small_cases + task.training_cases

    def announce(self, candidates: Sequence[Candidate]) -> None:
        """Builds what launches the kernels, in a process without the device."""
        self._launchers.build(candidates)

    def check(self, task: Task, candidate: Candidate, draws: Sequence[Draw]) -> Checked | Failure:
        """See `Tier`; guard bands and inputs must be untouched, and three runs on the declared inputs agree bit for bit (in a
        verification, on all inputs)."""
        checked = self.check_all(task, [(candidate, draws)])
        return checked if isinstance(checked, Failure) else checked[0]

    def check_all(self, task: Task, asked: Sequence[tuple[Candidate, Sequence[Draw]]]) -> list[Checked] | Failure:
        """See `check`; cases go to the device in few requests, small ones first."""
        flat = [(place, candidate, draw) for place, (candidate, draws) in enumerate(asked) for draw in draws]
        worst = [Checked(0.0, 0) for _ in asked]
        for request in requests([(candidate, draw) for _, candidate, draw in flat]):
            secret = [
                (candidate, Draw(self._seed(task, candidate.case, draw.seed), draw.variation)) for candidate, draw in request
            ]
            checks = self._gate.check(self._crew, task, secret, thorough=self._crew is not self._main)
            if isinstance(checks, Failure):
                return checks
            places, flat = [place for place, _, _ in flat[: len(request)]], flat[len(request) :]
            for place, checked in zip(places, checks, strict=True):
                before = worst[place]
                worst[place] = Checked(max(before.error_ratio, checked.error_ratio), max(before.peak_bytes, checked.peak_bytes))
        return worst

    def latency_us(self, task: Task, candidate: Candidate, worth_us: float = math.inf) -> float | Failure:
        """Median of a few graph replays."""
        crew, case, seed = self._crew, candidate.case, self._seed(task, candidate.case, 0)

        def replay() -> float:
            work = work_of(task, candidate)
            return float(crew.replay("latency", [work], lambda works: (works[0], seed, QUICK_REPLAYS, worth_us)))

        try:
            return self._with_room(replay)
        except WorkerOutOfMemory as error:
            return self._faults.too_large(
                task, case, error, Stage.TIME, lambda: self._gate.fit(crew, task, (candidate, Draw(seed)))
            )
        except WorkerDied as error:
            return self._faults.died(crew, case, error, Stage.TIME)

    def compare(self, task: Task, candidate: Candidate, baseline: Candidate, *, pairs: int, incumbent: float) -> Timing | Failure:
        """See `Tier` and `compare_all`; never stops early."""
        timings = self.compare_all(task, [(candidate, baseline)], pairs=pairs, placement=0)
        return timings if isinstance(timings, Failure) else timings[0]

    def compare_all(self, task: Task, sides: Sequence[Sides], *, pairs: int, placement: int) -> list[Timing] | Failure:
        """See `Tier`: A/B pairs in random order, each a graph replay after the L2 cache was overwritten."""
        names = {pair[0].case.name: pair for pair in sides}
        try:
            compared = self._with_room(lambda: self._measured(task, sides, pairs, placement))
        except WorkerOutOfMemory as error:
            candidate, baseline = names.get(error.told, sides[0])
            return self._faults.too_large(
                task, candidate.case, error, Stage.TIME, lambda: self._fit(task, candidate.case, baseline, placement)
            )
        except WorkerDied as error:
            return self._faults.died(self._crew, names.get(error.told, sides[0])[0].case, error, Stage.TIME)
        for (candidate, _), item in zip(sides, compared, strict=True):
            if not item.as_checked:
                text = f"case {candidate.case.name}: a timed call gave other outputs than a checked one on the same inputs"
                return Failure(Status.WRONG_VALUES, Stage.TIME, text, "wrong_values:timed call")
        return [Timing(statistics.median(i.mine), statistics.median(i.other), _log_ratios(i)) for i in compared]

    def noise_of(self, task: Task, case: Case) -> NoiseFloor | None:
        """See `Tier`."""
        return self._floors.get((task.name, case.name))

    def noise_floor(self) -> float:
        """Largest half-width of the A/A intervals measured so far."""
        return max((floor.half_width for floor in self._floors.values()), default=0.0)

    def conditions(self) -> str:
        """See `Tier`."""
        if not self._readings:
            return ""
        clocks = sorted(reading.sm_mhz for reading in self._readings)
        hottest = max(reading.celsius for reading in self._readings)
        return f"timed at SM clocks of {clocks[0]} to {clocks[-1]} MHz, at most {hottest} °C"

    def counters(self) -> Mapping[str, int]:
        """Of the replay process at work, if it lives."""
        return self._crew.counts()

    def fresh(self) -> None:
        """Until `settle`, another pair of workers with other seeds; the warm pair waits with all that it remembers."""
        self._readings.clear()
        self._crew = Crew(
            self._nursery, self._deadline_s, self.clock, spare=False, by_ipc=self._main.by_ipc, processes=self._processes
        )

    def settle(self) -> None:
        """Ends the pair that `fresh` made."""
        if self._crew is not self._main:
            self._crew.close()
            self._crew = self._main

    def healthy(self) -> bool:
        """Whether the device passes its health check now."""
        return not self._crew.ailment()

    def close(self) -> None:
        """See `Tier`."""
        self._crew.close()
        self._main.close()
        self._launchers.close()
        if self._owns_nursery:
            self._nursery.close()

    def _make_room(self) -> None:
        """Ends every process that holds memory of the device; the next calls make them anew."""
        self.clock.count("made room")
        self._crew.restart()
        if self._crew is not self._main:
            self._main.restart()

    def _with_room(self, call: Callable[[], T]) -> T:
        """A call that has the device to itself, done again with all of the device's memory where that was too little."""
        try:
            return call()
        except (WorkerOutOfMemory, WorkerNotReady):
            self._make_room()
        return call()

    def _fit(self, task: Task, case: Case, baseline: Candidate, placement: int) -> None:
        """What timing needs on a case whatever the candidate."""
        self._make_room()
        self._compare(task, [(baseline, baseline)], 1, placement, aa=True)

    def _measured(self, task: Task, sides: Sequence[Sides], pairs: int, placement: int) -> Sequence[Compared]:
        for candidate, baseline in sides:
            if (task.name, candidate.case.name) not in self._floors:
                self._floors[task.name, candidate.case.name] = self._noise(task, baseline)
        return self._compare(task, sides, pairs, placement)

    def _noise(self, task: Task, baseline: Candidate) -> NoiseFloor:
        """Equal kernels on both sides, the second loaded anew, in the memory of the first blocks of a race."""
        blocks: list[tuple[float, ...]] = []
        latencies: list[float] = []
        for placement in range(AA_BLOCKS):
            (compared,) = self._compare(task, [(baseline, baseline)], AA_PAIRS, placement, aa=True)
            blocks.append(_log_ratios(compared))
            latencies += compared.other
        return NoiseFloor.of(blocks, 0, statistics.median(latencies))

    def _compare(self, task: Task, sides: Sequence[Sides], pairs: int, placement: int, *, aa: bool = False) -> Sequence[Compared]:
        works = [work_of(task, candidate) for pair in sides for candidate in pair]
        seeds = [self._seed(task, pair[0].case, 0) for pair in sides]
        text = f"{works[0].plan_hash}:{placement}".encode()
        order = int.from_bytes(hashlib.sha256(self._secret + text).digest()[:6], "little")
        compared: list[Compared] = self._crew.replay(
            "compare",
            works,
            lambda sent: (list(zip(sent[::2], sent[1::2], strict=True)), seeds, pairs, placement, order, aa),
        )
        self._readings.extend(item.reading for item in compared if item.reading.sm_mhz)
        self.clock.count("pairs discarded", sum(item.discarded for item in compared))
        reasons = sorted({reason for item in compared for reason in item.throttled})
        if reasons:
            raise DeviceError(f"{self._identity} throttles and cannot be timed on: {', '.join(reasons)}")
        return compared

    def _seed(self, task: Task, case: Case, seed: int) -> int:
        text = f"{task.name}:{case.name}:{seed}".encode()
        return int.from_bytes(hashlib.sha256(self._crew.secret + text).digest()[:6], "little")


def _log_ratios(compared: Compared) -> tuple[float, ...]:
    return tuple(math.log(b / a) for a, b in zip(compared.mine, compared.other, strict=True))
