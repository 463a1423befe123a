"""Names what a case's inputs are drawn as: a seed, and how the declared distribution is varied."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Variation(StrEnum):
    """How floating-point inputs differ from the task's declared distribution; PLAIN is that distribution itself.

    A kernel that is right on the declared distribution alone has learned the distribution: it leaves out the maximum because
    exponents never overflow, takes a mean of normals for zero, or has a fast path for whatever structure it was shown. Each
    variation makes one such assumption false. Which tensors it changes is told in `evo.tasks.inputs`.
    """

    PLAIN = "plain"
    TIMES_3 = "times_3"
    """×3: what saturates, or a polynomial that was fitted to the declared range, is off."""
    TIMES_0_01 = "times_0_01"
    """×0.01: outputs that an absolute tolerance would let pass as zero."""
    POSITIVE = "positive"
    """Magnitudes: means and sums are not near zero, so a kernel that leaves them out is wrong."""
    NEGATED = "negated"
    """Minus the magnitudes: a maximum that starts at zero, or a magnitude taken for a value, is wrong."""
    CONSTANT = "constant"
    """One value everywhere in a tensor, from the seed: maxima are met by all, variances are zero. Of few digits, so that sums of it are
    exact in any order and rounding, which would add up in one direction, decides nothing."""
    TIES = "ties"
    """Four values of few digits: many equal maxima, many equal elements."""
    SORTED = "sorted"
    """Ascending along the last dimension: the last element is the largest, blocks differ in size. Rounded to a 32nd of the declared
    scale, so that sums which cancel stay exact."""
    SPARSE = "sparse"
    """Nine in ten are zeros, of either sign: a maximum over magnitudes met once, rows that are all zero."""
    SIGNED_ZEROS = "signed_zeros"
    """Zeros of either sign: what divides by a sum, a maximum or a deviation shows NaN."""
    LARGE = "large"
    """A deviation of 32: exponentials overflow unless a maximum is taken off, sigmoids saturate."""
    WIDE = "wide"
    """Beyond what float16 holds, while squares and their sums still fit float32; other dtypes than float16 alone. Products of such
    values decide by single roundings in what compares them (a softmax of scores), so only tasks that name it get it."""
    HUGE = "huge"
    """Near the end of the dtype's own range. Many references overflow on the way there, so only tasks that name it get it."""
    DENORMAL = "denormal"
    """Below the smallest normal number of the dtype: what flushes them, or stores them in another format, loses them."""
    FILLED = "filled"
    """Tensors declared as ones or zeros (gains, biases) get random values: a kernel that leaves them out is wrong."""


DEFAULT_VARIATIONS = frozenset(Variation) - {Variation.WIDE, Variation.HUGE}
"""Variations that make sense for any floating-point operation."""


@dataclass(frozen=True)
class Draw:
    """Which inputs of a case: equal draws give equal bits on one kind of device."""

    seed: int
    variation: Variation = Variation.PLAIN

    @property
    def words(self) -> str:
        """Said of the inputs in messages; empty for the declared distribution."""
        return "" if self.variation is Variation.PLAIN else f"{self.variation.value} inputs"
