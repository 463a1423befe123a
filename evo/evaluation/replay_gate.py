"""The gate of the replayed tier: one request is run and judged, and done again where others than the candidate are to blame."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock

from evo.errors import DeviceError, WorkerDied, WorkerNotReady, WorkerOutOfMemory
from evo.evaluation.checking import Differs
from evo.evaluation.crew import Crew, JudgeFailed
from evo.evaluation.replay_faults import Faults, memory_problem
from evo.evaluation.replay_messages import Ran, Work
from evo.evaluation.tier import Candidate, Checked
from evo.records import Failure, Stage, Status
from evo.tasks.base import Task
from evo.tasks.draws import Draw, Variation

REPEATS = 3
REQUEST_BYTES = 1 << 30
REQUEST_DRAWS = 24
SMALL_BYTES = 8 << 20
UNJUDGED = 4
"""Requests whose outputs wait for the judge at a time; more would fill the device's memory and make nothing faster."""

Asked = tuple[Candidate, Draw]


class Gate:
    """Runs and judges requests, for several threads.

    Args:
        faults: Names what goes wrong.
        make_room: Ends all processes of the tier, so that the next ones find all of the device's memory.
    """

    def __init__(self, faults: Faults, make_room: Callable[[], None]) -> None:
        self._faults = faults
        self._make_room = make_room
        self._unjudged = BoundedSemaphore(UNJUDGED)
        self._emptying = Lock()

    def check(self, crew: Crew, task: Task, asked: Sequence[Asked], *, thorough: bool) -> list[Checked] | Failure:
        """One request, done again where the judge failed, a neighbour's fault took the outputs away or spoiled remembered inputs: twice,
        for the neighbour's fault may follow upon the judge's; or where memory was too little.

        Args:
            crew: Runs and judges.
            task, asked: What; see `requests`.
            thorough: Every draw runs repeatedly, not the declared inputs alone.

        Raises:
            DeviceError: No answer could be had.
            TaskError: A case does not fit into the device.
        """
        for last in (False, False, True):
            try:
                with self._unjudged:
                    checks = self._run_and_judge(crew, task, asked, thorough)
            except JudgeFailed as error:
                if last:
                    raise self._unanswered(task, error) from error
                crew.trim()
                continue
            except (WorkerOutOfMemory, WorkerNotReady):
                return self._check_alone(crew, task, asked, thorough)
            except WorkerDied as error:
                names = {candidate.case.name: candidate.case for candidate, _ in asked}
                return self._faults.died(crew, names.get(error.told, asked[0][0].case), error)
            if not isinstance(checks, Failure) or last or checks.status is not Status.WRONG_VALUES:
                return checks
            try:
                if self._make_inputs(crew, task, asked):
                    return checks
            except (WorkerOutOfMemory, WorkerNotReady):
                continue  # what was remembered ended with the process
            except WorkerDied as error:
                return self._faults.died(crew, asked[0][0].case, error)
        raise AssertionError("the last turn returns or raises")

    def _check_alone(self, crew: Crew, task: Task, asked: Sequence[Asked], thorough: bool) -> list[Checked] | Failure:
        """Draw by draw while nothing else is checked: what was too little may have been what others, or caches, left over."""
        passed: list[Checked] = []
        with self._all_judged():
            for item in asked:
                try:
                    checks = self._run_with_room(crew, task, item, thorough)
                except JudgeFailed as error:
                    raise self._unanswered(task, error) from error
                except WorkerOutOfMemory as error:
                    return self._faults.too_large(
                        task,
                        item[0].case,
                        error,
                        Stage.GATE,
                        lambda item=item: self.fit(crew, task, item),  # type: ignore[misc]
                    )
                except WorkerDied as error:
                    return self._faults.died(crew, item[0].case, error)
                if isinstance(checks, Failure):
                    return checks
                passed += checks
        return passed

    def _run_with_room(self, crew: Crew, task: Task, item: Asked, thorough: bool) -> list[Checked] | Failure:
        try:
            return self._run_and_judge(crew, task, [item], thorough)
        except (WorkerOutOfMemory, WorkerNotReady):
            self._make_room()
        return self._run_and_judge(crew, task, [item], thorough)

    def fit(self, crew: Crew, task: Task, item: Asked) -> None:
        """Makes, in processes anew, what every candidate needs on a draw: its inputs twice, pristine and to run on, and the expected
        values.

        Raises:
            WorkerOutOfMemory: They do not fit.
        """
        self._make_room()
        self._make_inputs(crew, task, [item])
        work = work_of(task, item[0])
        crew.judge(work.task, work.case, item[1], "", pickle.dumps([]), Stage.GATE.value)

    @contextmanager
    def _all_judged(self) -> Iterator[None]:
        """No request is run or judged by another thread until the block ends."""
        with self._emptying:
            for _ in range(UNJUDGED):
                self._unjudged.acquire()
        try:
            yield
        finally:
            for _ in range(UNJUDGED):
                self._unjudged.release()

    def _make_inputs(self, crew: Crew, task: Task, asked: Sequence[Asked]) -> bool:
        """Whether remembered inputs are what they should be; where not, they are forgotten."""
        works = [work_of(task, candidate) for candidate, _ in asked]
        return bool(
            crew.replay(
                "restore_inputs", works, lambda sent: ([(work, draw) for work, (_, draw) in zip(sent, asked, strict=True)],)
            )
        )

    def _unanswered(self, task: Task, error: JudgeFailed) -> DeviceError:
        return DeviceError(f"{self._faults.identity}: the judge could not answer on task {task.name}: {error}")

    def _run_and_judge(self, crew: Crew, task: Task, asked: Sequence[Asked], thorough: bool) -> list[Checked] | Failure:
        works = [work_of(task, candidate) for candidate, _ in asked]
        released = crew.take_released()
        # Races, and reads beyond buffers, depend little on values: in a search, variations of the declared inputs run once.
        repeats = [REPEATS if thorough or draw.variation is Variation.PLAIN else 1 for _, draw in asked]
        draws = [draw for _, draw in asked]
        rans: list[Ran] = crew.replay(
            "check", works, lambda sent: (list(zip(sent, draws, repeats, strict=True)), crew.by_ipc, released)
        )
        checks: list[Checked] = []
        try:
            for number, (ran, work, (candidate, draw)) in enumerate(zip(rans, works, asked, strict=False)):
                problem = memory_problem(candidate.case, ran)
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


def work_of(task: Task, candidate: Candidate) -> Work:
    """What the replay process is told of a candidate."""
    reference = str(task.path) if task.path else task.name
    return Work(reference, candidate.case.name, candidate.plan, candidate.plan.plan_hash, candidate.binaries)


def requests(asked: Sequence[Asked]) -> list[list[Asked]]:
    """In order; a new one where small cases end, and where there is enough in one."""
    found: list[list[Asked]] = []
    held = 0
    for item in asked:
        size = item[0].case.bytes
        ends = found and found[-1][-1][0].case.bytes <= SMALL_BYTES < size
        if not found or ends or held + size > REQUEST_BYTES or len(found[-1]) >= REQUEST_DRAWS:
            found.append([])
            held = 0
        found[-1].append(item)
        held += size
    return found
