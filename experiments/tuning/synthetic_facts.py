"""What a trace would say of the kernels that `experiments/tuning_synthetic.py` models: written down from what they are said to do.

The models of latency were there first and know nothing of this; but they and the guess describe the same kind of machine, so that a
guess does better on them than it may on a real one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from evo.evaluation.tuning_facts import Facts
from evo.evaluation.tuning_prior import Prior, probes
from evo.evaluation.tuning_space import KnobSpace
from evo.records import Configuration, KnobValue
from evo.tracing.targets import TARGETS

TARGET = TARGETS["cuda:90"]
Knob = Mapping[str, Any]


def product(m: int, n: int, k: int) -> Callable[[Knob], Facts]:
    """A tiled matrix product of half-precision operands."""

    def facts(c: Knob) -> Facts:
        bm, bn, bk = c["BLOCK_M"], c["BLOCK_N"], c["BLOCK_K"]
        programs, together = math.ceil(m / bm) * math.ceil(n / bn), (bm + bn) * bk * 2
        asked = programs * together * k / bk
        return Facts(
            programs, 32 * c["num_warps"], max(bm, bn) * bk * 2, together, c["num_stages"], bm * bn, asked, bm, bn, bk, width=2
        )

    return facts


def attention(c: Knob) -> Facts:
    """Two products per tile of keys, of which the first is the larger."""
    bm, bn, dim = c["BLOCK_M"], c["BLOCK_N"], 128
    programs, together = math.ceil(4096 / bm) * 32 * c["split"], 2 * bn * dim * 2
    asked = programs * (bm * dim * 2 + 4096 / c["split"] * dim * 4)
    return Facts(
        programs,
        32 * c["num_warps"],
        max(bm, bn) * dim * 2,
        together,
        c["num_stages"],
        bm * (dim + 2),
        asked,
        bm,
        bn,
        dim,
        width=2,
    )


def streamed(
    c: Knob,
    programs: float,
    elements: float,
    width: int,
    asked: float,
    *,
    together: float = 1.0,
    words: float = 2.0,
    stages: int = 1,
) -> Facts:
    """A kernel without products: tiles of so many elements, `together` of them loaded at a time."""
    tile = elements * width
    return Facts(programs, 32 * c["num_warps"], tile, tile * together, stages, words * elements, asked, 1, 1, 1, width=1)


def rows(c: Knob) -> Facts:
    """A normalisation of rows."""
    programs, tile = math.ceil(8192 / c["ROWS"]), c["ROWS"] * c["BLOCK"]
    asked = programs * tile * math.ceil(3000 / c["BLOCK"]) * 4
    return streamed(c, programs, tile, 2, asked, stages=c["num_stages"])


def pointwise(c: Knob) -> Facts:
    """Two inputs and an output."""
    elements = c["BLOCK"] * c["UNROLL"]
    return streamed(c, 5e7 / elements, c["BLOCK"], 2, 5e7 * 6, together=2.0 * c["UNROLL"], words=2.0 * c["UNROLL"])


def split_reduction(c: Knob) -> Facts:
    """Tiles of a tall matrix."""
    programs = math.ceil(512 / c["BLOCK_M"]) * c["SPLIT"]
    return streamed(c, programs, c["BLOCK_M"] * c["BLOCK_K"], 2, 512 * 65536 * 2)


def scan(c: Knob) -> Facts:
    """Chunks of rows."""
    return streamed(c, math.ceil(2048 / c["ROWS"]), c["CHUNK"] * c["ROWS"], 4, 2048 * 16384 * 8, stages=c["num_stages"])


FACTS: Mapping[str, Callable[[Knob], Facts]] = {
    "gemm": product(4096, 4096, 4096),
    "thin_gemm": product(256, 2048, 8192),
    "rows": rows,
    "attention": attention,
    "pointwise": pointwise,
    "split_reduction": split_reduction,
    "scan": scan,
}


def synthetic_guess(name: str, space: Mapping[str, tuple[KnobValue, ...]], default: Configuration) -> Prior | None:
    """The guess that a tuner of that kernel would start from; None for other kernels."""
    if name not in FACTS:
        return None
    knobs = KnobSpace(space, default)
    return Prior(knobs, {item: FACTS[name](item) for item in probes(knobs)}, TARGET)
