"""Chooses the configurations of one variant on one case that are worth trying, with Optuna's TPE; evaluates nothing.

The declared configuration comes first, then the hints of relatives, then samples of a multivariate tree-structured Parzen
estimator (Bergstra et al., 2011), which needs few trials to learn which knobs matter together. Numeric knobs are given to it as
their rank among the sorted choices, so 64 and 128 are neighbours and 4096 is far away, whatever the scale.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, Trial, TrialState

from evo.records import Configuration, KnobValue

STARTUP_TRIALS = 5
"""Trials before TPE models anything; the declared configuration and the hints count."""

RESAMPLING_ATTEMPTS = 8
"""How often TPE may propose something known before an untried configuration is drawn uniformly."""

ENUMERATED = 4096
"""Spaces up to this size are listed to find what is left of them; larger ones are sampled."""

_FEASIBLE = "feasible"


class Tuner:
    """Ask for a configuration, tell its latency; one `Tuner` per variant and case. Not thread-safe.

    What is asked for is a function of the arguments and of what was told so far, so a tuning that was interrupted and is told
    the same answers again goes on as it would have.

    Args:
        space: Knob → allowed values; knobs that it lacks keep the value of `default`.
        default: Assigns every knob; tried first.
        hints: Configurations to try next; values that the space does not allow are replaced by the default's.
        trials: Configurations to try in all, the default included (it is tried even if this is 0).
        seed: Of the sampler.

    Raises:
        ValueError: `trials` is negative, or `default` lacks a knob of the space or has a value outside of it.
    """

    def __init__(
        self,
        space: Mapping[str, tuple[KnobValue, ...]],
        default: Configuration,
        hints: Sequence[Configuration],
        trials: int,
        seed: int,
    ) -> None:
        if trials < 0:
            raise ValueError(f"trials must not be negative, given {trials}")
        for name, choices in space.items():
            if name not in default or default[name] not in choices:
                raise ValueError(f"the default {default!r} does not set {name} to one of {list(choices)}")
        self._default = default
        self._choices = {name: _ordered(name, choices) for name, choices in sorted(space.items())}
        self._distributions = {name: _distribution(name, choices) for name, choices in self._choices.items()}
        self._first = [default, *(self._allowed(hint) for hint in hints)]
        self._size = math.prod(len(choices) for choices in self._choices.values())
        self._trials = max(1, trials)
        self._seed = seed
        self._pending: dict[Configuration, Trial] = {}
        self._asked: set[Configuration] = set()
        self._told: list[tuple[Configuration, float | None]] = []
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(direction="minimize", sampler=self._sampler(0))

    def ask(self) -> Configuration | None:
        """The next configuration, never one asked for before; None when all trials are asked for or the space is exhausted."""
        if len(self._asked) >= min(self._trials, self._size):
            return None
        while self._first:
            configuration = self._first.pop(0)
            if configuration not in self._asked:
                return self._given(configuration)
        for attempt in range(RESAMPLING_ATTEMPTS):
            self._study.sampler = self._sampler(len(self._asked) * RESAMPLING_ATTEMPTS + attempt)
            trial = self._study.ask(self._distributions)
            configuration = self._configuration(trial.params)
            if configuration not in self._asked:
                return self._noted(configuration, trial)
            self._study.tell(trial, state=TrialState.FAIL)
        return self._given(self._untried())

    def tell(self, configuration: Configuration, latency_us: float | None, feasible: bool) -> None:
        """Records the answer to one `ask`.

        Args:
            configuration: As `ask` returned it.
            latency_us: Microseconds; None if not feasible.
            feasible: False where the configuration does not compile, does not fit or is wrong. Optuna is told so as a violated
                constraint: it then avoids the neighbourhood, where a failed trial would teach it nothing.

        Raises:
            ValueError: The configuration is not open, or a latency is missing, not positive, or there without being feasible.
        """
        if configuration not in self._pending:
            raise ValueError(f"{configuration!r} was not asked for, or was told already")
        if feasible != (latency_us is not None) or (latency_us is not None and not 0 < latency_us < math.inf):
            raise ValueError(f"{configuration!r}: a positive latency if and only if feasible, given {latency_us}, {feasible}")
        trial = self._pending.pop(configuration)
        trial.set_user_attr(_FEASIBLE, feasible)
        # Only the rank of a value matters to TPE, and infeasible trials are ranked by their violation alone.
        self._study.tell(trial, math.inf if latency_us is None else latency_us)
        self._told.append((configuration, latency_us))

    @property
    def best(self) -> tuple[Configuration, float] | None:
        """The fastest feasible configuration told, the earliest among equals, with its latency in microseconds."""
        feasible = [(configuration, latency) for configuration, latency in self._told if latency is not None]
        return min(feasible, key=lambda item: item[1], default=None)

    def _given(self, configuration: Configuration) -> Configuration:
        self._study.enqueue_trial({name: self._code(name, configuration[name]) for name in self._choices})
        return self._noted(configuration, self._study.ask(self._distributions))

    def _noted(self, configuration: Configuration, trial: Trial) -> Configuration:
        self._asked.add(configuration)
        self._pending[configuration] = trial
        return configuration

    def _sampler(self, stream: int) -> optuna.samplers.TPESampler:
        seed = int(np.random.SeedSequence([self._seed % (1 << 63), stream]).generate_state(1)[0])
        with warnings.catch_warnings():  # experimental in Optuna 4, spelt otherwise from 5 on: the one form that both have
            warnings.simplefilter("ignore")
            return optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True, constraints_func=_violation
            )

    def _allowed(self, hint: Configuration) -> Configuration:
        kept = {name: hint[name] for name, choices in self._choices.items() if name in hint and hint[name] in choices}
        return Configuration({**self._default, **kept})

    def _configuration(self, codes: Mapping[str, int]) -> Configuration:
        return Configuration({**self._default, **{name: self._choices[name][code] for name, code in codes.items()}})

    def _code(self, name: str, value: KnobValue) -> int:
        return self._choices[name].index(value)

    def _untried(self) -> Configuration:
        generator = np.random.default_rng([self._seed % (1 << 63), len(self._asked)])
        if self._size <= ENUMERATED:
            every = itertools.product(*(range(len(choices)) for choices in self._choices.values()))
            left = [
                c
                for codes in every
                if (c := self._configuration(dict(zip(self._choices, codes, strict=True)))) not in self._asked
            ]
            return left[int(generator.integers(len(left)))]
        while True:  # the asked ones are a small part of a large space
            codes = {name: int(generator.integers(len(choices))) for name, choices in self._choices.items()}
            if (configuration := self._configuration(codes)) not in self._asked:
                return configuration


def _is_ordered(name: str, choices: Sequence[KnobValue]) -> bool:
    # An autotuner's choices are positions in a list that its author wrote in any order.
    return not name.startswith("autotune:") and all(isinstance(c, int | float) and not isinstance(c, bool) for c in choices)


def _ordered(name: str, choices: Sequence[KnobValue]) -> tuple[KnobValue, ...]:
    distinct = tuple(dict.fromkeys(choices))
    return tuple(sorted(distinct, key=float)) if _is_ordered(name, distinct) else distinct


def _distribution(name: str, choices: Sequence[KnobValue]) -> BaseDistribution:
    if _is_ordered(name, choices):
        return IntDistribution(0, len(choices) - 1)
    return CategoricalDistribution(tuple(range(len(choices))))


def _violation(trial: FrozenTrial) -> tuple[float]:
    return (0.0 if trial.user_attrs.get(_FEASIBLE, False) else 1.0,)
