"""The replayed tier: plans run from binaries in a trusted GPU process and are judged in another; no candidate Python comes near either."""

from __future__ import annotations

import hashlib
import math
import secrets
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from threading import BoundedSemaphore

from evo.errors import BadDeviceError, DeviceError, WorkerDied
from evo.evaluation.checking import Differs
from evo.evaluation.crew import REAL_PROCESSES, Crew, JudgeFailed, Processes
from evo.evaluation.health import Reading
from evo.evaluation.launchers import Launchers
from evo.evaluation.replay_child import Compared, Ran, Work
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.statistics import NoiseFloor
from evo.evaluation.tier import Candidate, Checked, Sides, Tier, Timing
from evo.evaluation.worker import Nursery
from evo.records import Failure, LatencyKind, Stage, Status, TrustLevel
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw, Variation

QUICK_REPLAYS = 7
REPEATS = 3
AA_BLOCKS = 5
AA_PAIRS = 8
"""The A/A noise of a case: so many blocks, in the memory that the first blocks of a race use, of so many pairs."""
REQUEST_BYTES = 1 << 30
REQUEST_DRAWS = 24
SMALL_BYTES = 8 << 20
JUDGES = 2
"""Judging takes about as long as running, and a replay process can keep more than one judge at work."""
UNJUDGED = 4
"""Requests whose outputs wait for the judge at a time; more would fill the device's memory and make nothing faster."""

Asked = tuple[Candidate, Draw]


class ReplayTier(Tier):
    """One GPU. Input seeds are drawn when it is made and never leave the trusted processes. Checks may come from several threads:
    while one's outputs are judged, the next runs.

    Args:
        settings: Deadlines.
        processes: What its workers serve.
        nursery: Where they come from, if others use it too; without one it has its own.

    Raises:
        DeviceError: There is no usable GPU.
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
        self._unjudged = BoundedSemaphore(UNJUDGED)
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
        for request in _requests([(candidate, draw) for _, candidate, draw in flat]):
            secret = [
                (candidate, Draw(self._seed(task, candidate.case, draw.seed), draw.variation)) for candidate, draw in request
            ]
            checks = self._request(task, secret)
            if isinstance(checks, Failure):
                return checks
            places, flat = [place for place, _, _ in flat[: len(request)]], flat[len(request) :]
            for place, checked in zip(places, checks, strict=True):
                before = worst[place]
                worst[place] = Checked(max(before.error_ratio, checked.error_ratio), max(before.peak_bytes, checked.peak_bytes))
        return worst

    def latency_us(self, task: Task, candidate: Candidate, worth_us: float = math.inf) -> float | Failure:
        """Median of a few graph replays."""
        try:
            seed = self._seed(task, candidate.case, 0)
            return float(
                self._crew.replay("latency", [_work(task, candidate)], lambda works: (works[0], seed, QUICK_REPLAYS, worth_us))
            )
        except WorkerDied as error:
            return self._died(candidate.case, error, Stage.TIME)

    def compare(self, task: Task, candidate: Candidate, baseline: Candidate, *, pairs: int, incumbent: float) -> Timing | Failure:
        """See `Tier` and `compare_all`; never stops early."""
        timings = self.compare_all(task, [(candidate, baseline)], pairs=pairs, placement=0)
        return timings if isinstance(timings, Failure) else timings[0]

    def compare_all(self, task: Task, sides: Sequence[Sides], *, pairs: int, placement: int) -> list[Timing] | Failure:
        """See `Tier`: A/B pairs in random order, each a graph replay after the L2 cache was overwritten."""
        try:
            for side in sides:
                if (task.name, side[0].case.name) not in self._floors:
                    self._floors[task.name, side[0].case.name] = self._noise(task, side[1])
            compared = self._compare(task, sides, pairs, placement)
        except WorkerDied as error:
            names = {candidate.case.name: candidate.case for candidate, _ in sides}
            return self._died(names.get(error.told, sides[0][0].case), error, Stage.TIME)
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

    def _request(self, task: Task, asked: Sequence[Asked]) -> list[Checked] | Failure:
        """One request, done again where the judge failed, a neighbour's fault took the outputs away or spoiled remembered inputs: twice,
        for the neighbour's fault may follow upon the judge's."""
        crew = self._crew
        for last in (False, False, True):
            try:
                with self._unjudged:
                    checks = self._run_and_judge(crew, task, asked)
            except JudgeFailed as error:
                if last:
                    raise DeviceError(f"{self._identity}: the judge could not answer on task {task.name}: {error}") from error
                crew.trim()
                continue
            except WorkerDied as error:
                names = {candidate.case.name: candidate.case for candidate, _ in asked}
                return self._died(names.get(error.told, asked[0][0].case), error)
            if not isinstance(checks, Failure) or last or checks.status is not Status.WRONG_VALUES:
                return checks
            try:
                if crew.replay(
                    "restore_inputs", [_work(task, candidate) for candidate, _ in asked], lambda works: (_zip(works, asked),)
                ):
                    return checks
            except WorkerDied as error:
                return self._died(asked[0][0].case, error)
        raise AssertionError("the last turn returns or raises")

    def _run_and_judge(self, crew: Crew, task: Task, asked: Sequence[Asked]) -> list[Checked] | Failure:
        works = [_work(task, candidate) for candidate, _ in asked]
        released = crew.take_released()
        # Races, and reads beyond buffers, depend little on values: in a search, variations of the declared inputs run once.
        repeats = [REPEATS if crew is not self._main or draw.variation is Variation.PLAIN else 1 for _, draw in asked]
        draws = [draw for _, draw in asked]
        rans: list[Ran] = crew.replay(
            "check", works, lambda sent: (list(zip(sent, draws, repeats, strict=True)), crew.by_ipc, released)
        )
        checks: list[Checked] = []
        try:
            for number, (ran, work, (candidate, draw)) in enumerate(zip(rans, works, asked, strict=False)):
                problem = _memory_problem(candidate.case, ran)
                if problem is not None and ran.differs is not Differs.UNDEFINED:
                    crew.drop([left.outputs for left in rans[number:]])
                    return problem
                verdict = crew.judge(work.task, work.case, draw, ran.structure, ran.outputs, Stage.GATE.value)
                if isinstance(verdict, Failure):
                    problem = verdict  # which says more than that it reads what nothing wrote
                else:
                    checks.append(Checked(verdict.error_ratio, ran.peak_bytes))
                if problem is not None:
                    crew.drop([left.outputs for left in rans[number + 1 :]])
                    return problem
        finally:
            crew.release([ran.token for ran in rans])
        return checks

    def _noise(self, task: Task, baseline: Candidate) -> NoiseFloor:
        """Equal kernels on both sides, the second loaded anew, in the memory of the first blocks of a race."""
        blocks = []
        for placement in range(AA_BLOCKS):
            (compared,) = self._compare(task, [(baseline, baseline)], AA_PAIRS, placement, aa=True)
            blocks.append(_log_ratios(compared))
        return NoiseFloor.of(blocks, seed=0)

    def _compare(self, task: Task, sides: Sequence[Sides], pairs: int, placement: int, *, aa: bool = False) -> Sequence[Compared]:
        works = [_work(task, candidate) for pair in sides for candidate in pair]
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

    def _died(self, case: Case, error: WorkerDied, stage: Stage = Stage.GATE) -> Failure:
        """The verdict on a candidate that took the replay process with it; the device is proved well first, twice if need be."""
        self.clock.count("workers replaced")
        found = self._crew.ailment()
        if found:
            found = self._crew.ailment()
        if found:
            raise BadDeviceError(f"{self._identity} fails its health check twice after {error}: {found}")
        if error.reason == "deadline":
            text = f"case {case.name}: the kernels did not end within {self._deadline_s:g} s"
            return Failure(Status.TIMEOUT, stage, text, "timeout:replay")
        return Failure(Status.RUNTIME_ERROR, stage, f"case {case.name}: {error.reason}", f"runtime_error:{error.reason[:80]}")


def _work(task: Task, candidate: Candidate) -> Work:
    reference = str(task.path) if task.path else task.name
    return Work(reference, candidate.case.name, candidate.plan, candidate.plan.plan_hash, candidate.binaries)


def _zip(works: Sequence[Work], asked: Sequence[Asked]) -> list[tuple[Work, Draw]]:
    return [(work, draw) for work, (_, draw) in zip(works, asked, strict=True)]


def _requests(asked: Sequence[Asked]) -> list[list[Asked]]:
    """In order; a new one where small cases end, and where there is enough in one."""
    requests: list[list[Asked]] = []
    held = 0
    for item in asked:
        size = item[0].case.bytes
        ends = requests and requests[-1][-1][0].case.bytes <= SMALL_BYTES < size
        if not requests or ends or held + size > REQUEST_BYTES or len(requests[-1]) >= REQUEST_DRAWS:
            requests.append([])
            held = 0
        requests[-1].append(item)
        held += size
    return requests


def _memory_problem(case: Case, ran: Ran) -> Failure | None:
    where = f"case {case.name}: "
    if ran.violations:
        text = f"{where}writes outside its buffers ({ran.violations} guard bands changed)"
        return Failure(Status.GUARD_VIOLATION, Stage.GATE, text, "guard_violation:bands")
    if ran.changed_inputs:
        key = ran.changed_inputs[0]
        what = f"argument {key}" if isinstance(key, int) else f"parameter {key}"
        text = f"{where}changes {what}, or memory around it, which the task does not update in place"
        return Failure(Status.GUARD_VIOLATION, Stage.GATE, text, "guard_violation:inputs")
    if ran.differs is Differs.RACE:
        text = f"{where}equal calls give different bits: a race, or atomics whose order matters"
        return Failure(Status.NONDETERMINISTIC, Stage.GATE, text, "nondeterministic:bits")
    if ran.differs is Differs.BEYOND:
        text = f"{where}the outputs depend on what lies beyond the buffers: it reads out of bounds; mask the loads"
        return Failure(Status.GUARD_VIOLATION, Stage.GATE, text, "guard_violation:reads")
    if ran.differs is Differs.UNDEFINED:
        text = (
            f"{where}the outputs depend on memory that nothing wrote: an output or scratch buffer is not filled before it is read"
        )
        return Failure(Status.WRONG_VALUES, Stage.GATE, text, "wrong_values:undefined memory")
    return None


def _log_ratios(compared: Compared) -> tuple[float, ...]:
    return tuple(math.log(b / a) for a, b in zip(compared.mine, compared.other, strict=True))
