"""Crossover of three: like crossover, with a third parent."""

from __future__ import annotations

from typing import ClassVar

from operators.llm.crossover import LlmCrossover


class LlmCrossoverOfThree(LlmCrossover):
    """Three parents show the model more techniques and cost half as many tokens again; the bandit finds out whether that pays."""

    name: ClassVar[str] = "llm_crossover_of_three"
    arity: ClassVar[int] = 3
