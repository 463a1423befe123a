"""The reward of a verdict: rule × execution × speed.

* **rule** is 1 where the launch plan launches Triton kernels and torch does nothing but what the task allows, and 0 else. It is read
  from the plan of two sandboxed traces, never from the text. A module that is the one shown, or one that imports what it has no
  business with, gets 0 as well.
* **execution** is 1 where every check of the gate passed, and 0 else.
* **speed** is s / (1 + s), where s is the *lower* bound of the 95 % interval of the speedup, measured in pairs on a GPU: the logistic
  function of ln s. It is ½ for a kernel as fast as what it is measured against, ⅔ at twice and ⅓ at half its speed, so a correct kernel is
  always above a wrong one, and no outlier outweighs a group. Where no speedup was measured it is ½: a modelled estimate is no speed.

A rule that gates a reward for execution: Li et al., 2025, "AutoTriton: Automatic Triton Programming with Reinforcement Learning in
LLMs" (there the rule reads the text, and speed has no part).
"""

from __future__ import annotations

from dataclasses import dataclass

from evo.records import Evaluation, LatencyKind, Stage, Status, TrustLevel

NEUTRAL = 0.5
"""The part of speed where none is known."""

REASON = 400
"""Characters of the reason that is told."""

_PLANNED = frozenset({TrustLevel.REPLAYED, TrustLevel.INTERPRETED})
"""Levels at which what ran is the launch plan; at the other one the module's own process says what torch did."""


@dataclass(frozen=True)
class Parts:
    """What a reward is made of.

    Attributes:
        rule, execution: 0 or 1.
        speed: Between 0 and 1.
        measured: Whether `speed` was measured; else it is `NEUTRAL`.
        reason: Why a part is 0; empty otherwise.
    """

    rule: float
    execution: float
    speed: float = NEUTRAL
    measured: bool = False
    reason: str = ""

    @property
    def reward(self) -> float:
        """The product: 0, or between 0 and 1."""
        return self.rule * self.execution * self.speed


def parts_of(verdict: Evaluation) -> Parts:
    """The parts for one verdict."""
    reason = "" if verdict.status is Status.PASSED else _reason(verdict)
    if verdict.status is Status.DUPLICATE:
        return Parts(0.0, 0.0, reason="it launches what was shown")
    if verdict.stage.rank <= Stage.TRACE.rank or (verdict.trust is not None and verdict.trust not in _PLANNED):
        return Parts(0.0, 0.0, reason=reason or "it has no launch plan")
    if verdict.status is not Status.PASSED:
        return Parts(1.0, 0.0, reason=reason)
    if verdict.latency_kind is not LatencyKind.MEASURED or not all(case.pairs for case in verdict.cases):
        return Parts(1.0, 1.0)  # an estimate, or timed without anything to compare it with
    return Parts(1.0, 1.0, verdict.fitness / (1.0 + verdict.fitness), measured=True)


def _reason(verdict: Evaluation) -> str:
    """One line, for a trainer's log."""
    return f"{verdict.stage.value}: {verdict.status.value}: {' '.join(verdict.message.split())}"[:REASON]
