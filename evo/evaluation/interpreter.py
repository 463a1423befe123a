"""The tier for machines without a GPU: plans run under Triton's interpreter, latencies are modelled from the compiled plan.

What is interpreted is not the module but a transcript of its validated plan: the module's kernels, reduced to device code, and a wrapper
that is the plan written down (`evo.evaluation.transcript`). Traced, the transcript must give the same plan, so the code that is modelled
is the code that is interpreted, and none of the module's own Python runs beside the values. Only modules with parameters or a
backward pass are interpreted as they are; their Python is contained, but could forge what it computes.

A verdict of this tier is trusted least all the same. Inputs of a secret seed (drawn when the tier is made) are written as raw bytes;
outputs come back as raw bytes, are checked as data of a hostile process and judged here, where expected values live. What it cannot
see: values on training cases (only small ones are interpreted), races between programs (they run one after the other, from the last
to the first, unless a kernel waits in a loop), rounding of the GPU's own instructions but for TF32, and anything that only the
compiled binary does.
"""

from __future__ import annotations

import math
import secrets
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from evo.errors import WorkerDied
from evo.evaluation.estimate import modelled_latency_us
from evo.evaluation.inputs import make_inputs
from evo.evaluation.interpreted_files import MAX_OUTPUT_BYTES, InvalidAnswer, Run
from evo.evaluation.judge import Judge
from evo.evaluation.reduction import NotReducible
from evo.evaluation.tier import Candidate, Checked, Tier, Timing
from evo.evaluation.transcript import can_transcribe, transcribe
from evo.records import Configuration, Failure, LatencyKind, Stage, Status, TrustLevel, content_id
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from evo.tracing.plan import LaunchPlan
from evo.tracing.sandbox import ForkServer, Limits
from evo.tracing.targets import target_named
from evo.tracing.tracer import Tracer
from evo.tracing.workbench import Job, Workbench

ORACLE_BYTES = 256 << 20
REMEMBERED = 256
"""Transcripts kept, the newest."""


class InterpretedTier(Tier):
    """See the module's docstring.

    Args:
        target: Key of `evo.tracing.targets.TARGETS` that latencies are modelled for.
        deadline_s: Wall seconds of one checked run.
        workbench: Traces transcripts; not closed with the tier. None: the tier starts a tracer of its own when it needs one.
    """

    def __init__(self, target: str, *, deadline_s: float = 120.0, workbench: Workbench | None = None) -> None:
        self.target = target_named(target)
        self.workbench = workbench
        self._tracer = Tracer(target, deadline_s=deadline_s)
        self._transcripts: OrderedDict[tuple[str, str, str], str | Failure] = OrderedDict()
        self._deadline_s = deadline_s
        limits = Limits(cpu_s=math.ceil(deadline_s), file_bytes=MAX_OUTPUT_BYTES)
        self._server = ForkServer(
            "interpret",
            limits,
            preload=("evo.evaluation.interpret_child",),
            environment={"TRITON_INTERPRET": "1"},
        )
        self._judge = Judge("cpu", ORACLE_BYTES)
        self._secret = secrets.randbits(48)

    @property
    def device(self) -> str:
        """The target's key, marked as modelled."""
        return f"{self.target.key} (modelled)"

    @property
    def trust(self) -> TrustLevel:
        """INTERPRETED."""
        return TrustLevel.INTERPRETED

    @property
    def latency_kind(self) -> LatencyKind:
        """MODELLED."""
        return LatencyKind.MODELLED

    @property
    def gates_on_binaries(self) -> bool:
        """False: the source itself runs."""
        return False

    @property
    def gpu_s(self) -> float:
        """Always 0."""
        return 0.0

    def gate_cases(self, task: Task) -> tuple[Case, ...]:
        """The small cases: the interpreter needs about a millisecond per program."""
        return task.small_cases

    def check(self, task: Task, candidate: Candidate, draws: Sequence[Draw]) -> Checked | Failure:
        """Interprets the candidate on the inputs of each draw and judges what it computed."""
        worst = Checked(0.0, candidate.plan.scratch_bytes)
        source = self._interpreted(task, candidate)
        if isinstance(source, Failure):
            return source
        for draw in draws:
            checked = self._check(task, candidate, source, Draw(draw.seed ^ self._secret, draw.variation))
            if isinstance(checked, Failure):
                return checked
            worst = max(worst, checked, key=lambda item: item.error_ratio)
        return worst

    def _check(self, task: Task, candidate: Candidate, source: str, draw: Draw) -> Checked | Failure:
        seed = draw.seed
        configuration = candidate.configuration if source == candidate.source else {}
        inputs = make_inputs(task, candidate.case, seed, "cpu", draw.variation)
        with tempfile.TemporaryDirectory(prefix="triton-evolve-interpret-", ignore_cleanup_errors=True) as folder:
            run = Run(Path(folder), task, inputs, seed)
            try:
                answer = self._server.call(
                    "evo.evaluation.interpret_child:interpret",
                    run.request(source, configuration, self.target.key, backwards=_any_order(candidate.plan)),
                    deadline_s=self._deadline_s,
                    scratch=Path(folder),
                )
                outputs = run.outputs(answer)
            except WorkerDied as error:
                return self._died(task, candidate, error)
            except InvalidAnswer as error:
                return _failure(Status.RUNTIME_ERROR, f"the interpreter's answer is not valid: {error}", "answer")
        if isinstance(outputs, Failure):
            text = f"case {candidate.case.name}: {outputs.message}"
            return Failure(outputs.status, outputs.stage, text, outputs.signature)
        verdict = self._judge.judge(task, candidate.case, draw, outputs)
        return verdict if isinstance(verdict, Failure) else Checked(verdict.error_ratio, candidate.plan.scratch_bytes)

    def latency_us(self, task: Task, candidate: Candidate, worth_us: float = math.inf) -> float | Failure:
        """The modelled latency; see `evo.evaluation.estimate`."""
        refusal = self.refusal(task, candidate)
        if refusal is not None:
            return Failure(refusal.status, Stage.TIME, refusal.message, refusal.signature)
        return modelled_latency_us(candidate.plan, candidate.binaries, candidate.case, self.target)

    def compare(self, task: Task, candidate: Candidate, baseline: Candidate, *, pairs: int, incumbent: float) -> Timing | Failure:
        """Modelled latencies side by side, without pairs."""
        refusal = self.refusal(task, candidate)
        if refusal is not None:
            return Failure(refusal.status, Stage.TIME, refusal.message, refusal.signature)
        ours, theirs = (modelled_latency_us(item.plan, item.binaries, item.case, self.target) for item in (candidate, baseline))
        return Timing(ours, theirs, ())

    def noise_floor(self) -> float:
        """0: a model has no noise."""
        return 0.0

    def start(self) -> None:
        """Starts the fork server ahead of need."""
        self._server.start()

    def fresh(self) -> None:
        """Nothing to do: every check runs in a new process anyway."""

    def close(self) -> None:
        """Ends the tier's processes."""
        self._server.close()
        self._tracer.close()

    def refusal(self, task: Task, candidate: Candidate) -> Failure | None:
        """REJECTED where the candidate's plan has other code than its source, or cannot be told from it; runs nothing but a trace."""
        source = self._interpreted(task, candidate)
        return source if isinstance(source, Failure) else None

    def _interpreted(self, task: Task, candidate: Candidate) -> str | Failure:
        """The module to interpret: the transcript of the candidate's plan, or REJECTED where the plan has other code than its source."""
        if not can_transcribe(task):
            return candidate.source
        key = (content_id(candidate.source), candidate.case.name, candidate.plan.plan_hash)
        if key not in self._transcripts:
            self._transcripts[key] = self._transcript(task, candidate)
            while len(self._transcripts) > REMEMBERED:
                self._transcripts.popitem(last=False)
        return self._transcripts[key]

    def _transcript(self, task: Task, candidate: Candidate) -> str | Failure:
        where = f"case {candidate.case.name}: without a GPU, a plan is interpreted from the module's kernels, but"
        try:
            text = transcribe(candidate.source, candidate.plan, task)
        except NotReducible as error:
            return _failure(Status.REJECTED, f"{where} {error}", "not reducible")
        plan = self._trace(text, task, candidate.case)
        if isinstance(plan, Failure):
            return _failure(Status.REJECTED, f"{where} by themselves they cannot be traced: {plan.message}", "transcript")
        if plan.plan_hash != candidate.plan.plan_hash:
            return _failure(Status.REJECTED, f"{where} it launches other code than theirs", "other code")
        return text

    def _trace(self, source: str, task: Task, case: Case) -> LaunchPlan | Failure:
        if self.workbench is None:
            return self._tracer.trace(source, task, case, Configuration())
        made = self.workbench.prepare([Job(source, task, case, Configuration(), binaries=False)], priority=-1)[0]
        return made if isinstance(made, Failure) else made.plan

    def _died(self, task: Task, candidate: Candidate, error: WorkerDied) -> Failure:
        where = f"case {candidate.case.name}: {task.entry} under Triton's interpreter"
        if error.reason == "deadline":
            return _failure(Status.TIMEOUT, f"{where} took more than {self._deadline_s:g} s", "deadline")
        return _failure(Status.RUNTIME_ERROR, f"{where} ended its process: {error.reason}", error.reason)


def _any_order(plan: LaunchPlan) -> bool:
    """Whether programs may run in any order: none waits in a loop for what another does."""
    return not any("scf.while" in kernel.ttir or "cf.cond_br" in kernel.ttir for kernel in plan.kernels)


def _failure(status: Status, message: str, signature: str) -> Failure:
    return Failure(status, Stage.GATE, message, f"{status.value}:gate:{signature}")
