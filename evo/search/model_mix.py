"""Which language model answers a request: the one that gains most per dollar, and never one that refused the same question.

A second bandit beside that of operators. Each model has a Beta distribution over its reward and a faded mean of what a proposal of
it cost; what is compared is a draw of the reward over the cost, as a share of the mean cost of all (Thompson sampling with costs: Xia
et al., 2015, "Thompson Sampling for Budgeted Multi-armed Bandits").
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import numpy as np

from evo.exchanges import LEFT, NO_ANSWER, REFUSAL
from evo.records import NoProposal, Proposal, Request
from evo.search.bandit import Arm

FAILING_FROM = 3
"""Failures in a row from which on a model is said to fail."""

FREE_SHARE = 0.25
"""A model counts as if a proposal of it cost at least this share of the mean: evaluating it costs time in any case."""


class Refusal(Enum):
    """Whether a model refused a question, and whether another one is left for it.

    UNREACHED: no model has seen it, or none was heard to the end. That is the endpoint's doing and says nothing about the question,
    its operator or its lineage.
    """

    NONE = 0
    PASSED_ON = 1
    FINAL = 2
    UNREACHED = 3


@dataclass
class ModelArm(Arm):
    """What is known of one model: faded sums of dollars and of proposals that they paid for, besides rewards."""

    dollars: float = 0.0
    paid: float = 0.0


class ModelBandit:
    """Model statistics for one kind of kernel.

    Args:
        floor: Share of choices made evenly.
        memory: Uses of a model after which an old reward counts 1/e.
    """

    KEPT: ClassVar = ("arms",)

    def __init__(self, floor: float, memory: int) -> None:
        self.arms: dict[str, ModelArm] = {}
        self._floor = floor
        self._fade = math.exp(-1.0 / memory)

    def choose(self, models: Sequence[str], rng: np.random.Generator) -> str:
        """One of `models` (not empty). Draws the same count of numbers whatever was learned of them."""
        evenly = rng.random() < self._floor
        any_one = int(rng.integers(len(models)))
        arms = [self.arms.get(label, ModelArm()) for label in models]
        draws = rng.beta([1.0 + arm.won for arm in arms], [1.0 + arm.lost for arm in arms])
        return models[any_one if evenly else int(np.argmax(draws / _shares(arms)))]

    def pay(self, model: str, dollars: float) -> None:
        """Adds the price of one proposal."""
        arm = self.arms.setdefault(model, ModelArm())
        arm.dollars = arm.dollars * self._fade + dollars
        arm.paid = arm.paid * self._fade + 1.0

    def learn(self, model: str, gained: float) -> None:
        """Adds one use with its reward in [0, 1]."""
        arm = self.arms.setdefault(model, ModelArm())
        arm.won = arm.won * self._fade + gained
        arm.lost = arm.lost * self._fade + 1.0 - gained
        arm.uses += 1
        arm.gains += gained > 0


def _shares(arms: Sequence[ModelArm]) -> np.ndarray:
    """What a proposal of each costs, as a share of the mean; 1 for one that was never paid."""
    costs = [arm.dollars / arm.paid if arm.paid else math.nan for arm in arms]
    known = [cost for cost in costs if not math.isnan(cost)]
    mean = math.fsum(known) / len(known) if known else 0.0
    if mean <= 0:
        return np.ones(len(arms))
    return np.array([1.0 if math.isnan(cost) else max(cost / mean, FREE_SHARE) for cost in costs])


class ModelMix:
    """The models of one task: a function of its journal, like all of its state.

    Args:
        models: Labels, in the order of the configuration; none where requests name no model.
        bandit: Shared by tasks of the same kernel kind.
        failure_limit: Failures of a model in a row after which it is not asked again before a resume.
    """

    KEPT: ClassVar = ("_failures", "_reasons", "_refused", "_unanswered", "_incredible", "_ignored")

    def __init__(self, models: Sequence[str], bandit: ModelBandit, failure_limit: int) -> None:
        self.models = tuple(models)
        self.bandit = bandit
        self._limit = failure_limit
        self._failures: dict[str, int] = {}
        self._reasons: dict[str, str] = {}
        self._incredible: Counter[str] = Counter()
        self._ignored: Counter[str] = Counter()
        self._refused: dict[tuple[str, tuple[str, ...]], set[str]] = {}
        self._unanswered: list[Request] = []

    @property
    def is_open(self) -> bool:
        """Whether any model may be asked; also where no models are known, for then nobody counts."""
        return not self.models or any(self._answers(model) for model in self.models)

    @property
    def failing(self) -> dict[str, tuple[int, str]]:
        """Models that fail again and again: how often in a row, and why the last time."""
        return {model: (count, self._reasons[model]) for model, count in self._failures.items() if count >= FAILING_FROM}

    @property
    def incredible(self) -> Mapping[str, int]:
        """How many replies of a model came with more tokens than there can be."""
        return self._incredible

    @property
    def ignored(self) -> Mapping[str, int]:
        """How many whole replies of a model left the grammar that was sent with the request."""
        return self._ignored

    @property
    def unanswered(self) -> tuple[Request, ...]:
        """Questions that a model refused and another one may answer."""
        return tuple(self._unanswered)

    def redirected(self, number: int, still_open: Callable[[Request], bool]) -> Request | None:
        """The oldest question that a model refused and another one may answer, as a new request without a model."""
        for request in self._unanswered:
            if still_open(request):
                return dataclasses.replace(request, number=number, model="")
        return None

    def with_model(self, request: Request, rng: np.random.Generator) -> Request:
        """The request with the model that shall answer it; one that has a model already keeps it unless that one refused.

        A refused question is asked of models that did not refuse it, even of those that failed lately.
        """
        if not self.models:
            return request
        refused = self._refused.get((request.operator, request.parents), set())
        if request.model in self.models and request.model not in refused and self._answers(request.model):
            return request
        willing = [model for model in self.models if model not in refused] or list(self.models)
        answering = [model for model in willing if self._answers(model)] or willing
        return dataclasses.replace(request, model=self.bandit.choose(answering, rng))

    def asked(self, request: Request) -> bool:
        """A request was made; True if it is the answer to a refusal."""
        for place, waiting in enumerate(self._unanswered):
            if dataclasses.replace(request, number=waiting.number, model=waiting.model) == waiting:
                del self._unanswered[place]
                return True
        return False

    def answered(self, request: Request, outcome: Proposal | NoProposal) -> Refusal:
        """What came of a request."""
        if not request.model:
            return Refusal.NONE
        dollars = math.fsum(exchange.usage.dollars for exchange in outcome.exchanges)
        failed = isinstance(outcome, NoProposal) and outcome.failed
        if dollars > 0 or not failed:  # a request that reached nobody says nothing about the price
            self.bandit.pay(request.model, dollars)
        self._failures[request.model] = self._failures.get(request.model, 0) + 1 if failed else 0
        if isinstance(outcome, NoProposal) and failed:
            self._reasons[request.model] = outcome.reason
        self._incredible[request.model] += sum(exchange.usage.claimed_tokens > 0 for exchange in outcome.exchanges)
        self._ignored[request.model] += sum(exchange.grammar == LEFT for exchange in outcome.exchanges)
        ended = outcome.exchanges[-1].stop_reason if failed and outcome.exchanges else ""
        if ended != REFUSAL:
            return Refusal.UNREACHED if ended == NO_ANSWER else Refusal.NONE
        refused = self._refused.setdefault((request.operator, request.parents), set())
        refused.add(request.model)
        if refused >= set(self.models):
            return Refusal.FINAL
        self._unanswered.append(request)
        return Refusal.PASSED_ON

    def learn(self, request: Request, gained: float) -> None:
        """The reward of a request, in [0, 1]."""
        if request.model:
            self.bandit.learn(request.model, gained)

    def new_session(self) -> None:
        """Models that were given up (an endpoint that was down) get another chance."""
        self._failures = {model: count for model, count in self._failures.items() if count < self._limit}

    def _answers(self, model: str) -> bool:
        return self._failures.get(model, 0) < self._limit
