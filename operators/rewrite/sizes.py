"""Which values of tile sizes and launch options are worth trying beside those that a kernel uses already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evo.records import KnobValue

WARPS = (1, 2, 4, 8, 16)
STAGES = (1, 2, 3, 4, 5)
OPTIONS: Mapping[str, tuple[int, ...]] = {"waves_per_eu": (0, 1, 2, 3, 4), "matrix_instr_nonkdim": (0, 16, 32), "kpack": (1, 2)}
"""All values of launch options that AMD's backend knows."""
SMALLEST_TILE = 16
"""Of a matrix product: smaller ones are not compiled."""
LARGEST_TILE, LARGEST_DOT_TILE = 65536, 256


def choices_beside(name: str, used: Sequence[KnobValue], *, dots: bool) -> tuple[KnobValue, ...]:
    """`powers_between`, or the values used alone where they are no numbers, or are legal on some devices only."""
    numbers = [value for value in used if type(value) is int]
    if len(numbers) < len(used) or name in ("num_ctas", "maxnreg"):
        return tuple(used)
    return powers_between(name, numbers, dots=dots)


def powers_between(name: str, used: Sequence[int], *, dots: bool) -> tuple[int, ...]:
    """The values used, with what lies between and just beside them.

    Args:
        name: Of the parameter or launch option.
        used: Values that configurations of the author use.
        dots: The kernel multiplies matrices, so tiles are two-dimensional and registers the limit.

    Returns:
        All values of launch options; powers of two from half the smallest to twice the largest within what compiles; the values alone
        where they are no powers of two, or are not tile sizes.
    """
    if name == "num_warps":
        return tuple(sorted({*WARPS, *used}))
    if name == "num_stages":
        return tuple(sorted({*STAGES, *used}))
    if name in OPTIONS:
        return tuple(sorted({*OPTIONS[name], *used}))
    if any(value < 1 or value & (value - 1) for value in used):
        return tuple(sorted(set(used)))
    low, high = min(used), max(used)
    if low < SMALLEST_TILE:  # rows per program, group and split counts: from one upwards
        return tuple(1 << power for power in range(max(0, low.bit_length() - 2), high.bit_length() + 1))
    top = max(high, LARGEST_DOT_TILE if dots else LARGEST_TILE)
    smallest = max(SMALLEST_TILE, low // 2)
    return tuple(size for power in range(32) if smallest <= (size := 1 << power) <= min(top, high * 2))
