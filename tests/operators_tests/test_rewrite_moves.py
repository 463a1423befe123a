"""What is special to single rewrites: what their children look like, what keeps them away, that twice is no more than once."""

from pathlib import Path

import pytest

from evo.knobs import read_knobs
from tests.operators_tests.offering import child, found, refusals

ROOT = Path(__file__).parents[2]
STARTS, TUNING = ROOT / "evo/tasks/starts", ROOT / "experiments/tuning/kernels"
ATTENTION, GEMM, SOFTMAX, RMS_NORM = (
    (STARTS / f"{name}.py").read_text() for name in ("attention", "gemm_bias_gelu", "softmax", "rms_norm")
)
LOOPED = (ROOT / "tests/operators_tests/kernels/looped_norm.py").read_text()
COLUMNS = (ROOT / "tests/operators_tests/kernels/scale_columns.py").read_text()
HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n\n"
WRAPPED = (
    HEAD
    + """\
@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) % n  # around the end
    tl.store(y_ptr + at, tl.load(x_ptr + at))


def copy(x):
    y, n = torch.empty_like(x), x.numel()
    copy_kernel[(triton.cdiv(n, 64),)](x, y, n, BLOCK=64)
    return y
"""
)
ROWS = (
    HEAD
    + """\
@triton.jit
def rows_kernel(x_ptr, w_ptr, y_ptr, m, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    for row in range(0, m):
        # the same for all rows
        w = tl.load(w_ptr + columns, mask=columns < n, other=0.0)
        x = tl.load(x_ptr + row * n + columns, mask=columns < n, other=0.0)
        shifted = tl.where(columns < n, x, 0.0) - tl.load(w_ptr + columns, mask=columns < n, other=0.0)
        tl.store(y_ptr + row * n + columns, shifted * w, mask=columns < n)


def rows(x, w):
    y = torch.empty_like(x)
    rows_kernel[(1,)](x, w, y, x.shape[0], x.shape[1], BLOCK=64)
    return y
"""
)


@pytest.mark.parametrize(
    ("name", "source", "shown"),
    [
        ("accumulate_in_dot", ATTENTION, "accumulator = tl.dot(weights.to(v.dtype), v, accumulator * shrink[:, None])"),
        ("contiguity_hints", GEMM, "tl.max_contiguous(tl.multiple_of("),
        ("constant_sizes", SOFTMAX, "def softmax_kernel(x_ptr, y_ptr, n_columns: tl.constexpr, BLOCK: tl.constexpr)"),
        ("even_wraps", WRAPPED, "if NO_WRAP_N else (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) % n)  # around the end"),
        ("flatten_grid", COLUMNS, "program_1 = program // n_programs_0"),
        ("flatten_where", ROWS, "shifted = x - tl.load("),
        ("hoist_loads", ROWS, "    # the same for all rows\n    w = tl.load(w_ptr + columns, mask=columns < n, other=0.0)\n    for row"),
        ("name_arguments", (TUNING / "gemm.py").read_text(), 'M, N, K, BLOCK_K=CONFIG["BLOCK_K"], BLOCK_M=CONFIG["BLOCK_M"]'),
        ("narrow_indices", SOFTMAX, "row = (tl.program_id(0) if NARROW else tl.program_id(0).to(tl.int64))"),
        ("reciprocal_division", SOFTMAX, "numerator * (1.0 / tl.sum(numerator, axis=0))"),
        ("reciprocal_roots", LOOPED, "scale = tl.rsqrt(squares / n + eps)"),
        ("reuse_loads", ROWS, "tl.where(columns < n, x, 0.0) - w"),
        ("split_loop", GEMM, "def gemm_bias_gelu_kernel_partial("),
        ("swizzle_programs", ATTENTION, "swizzled_1, swizzled_0 = tl.swizzle2d(tl.program_id(1), tl.program_id(0),"),
        ("tiles_per_program", SOFTMAX, "        if tile < n_tiles:\n            row = tile.to(tl.int64)"),
    ],
)  # fmt: skip
def test_the_move_is_made_once(name, source, shown):
    made = child(name, source)
    assert shown in made, made
    again = found(name, made).children
    assert not [item for item in again if item.strategy == found(name, source).children[0].strategy], again[0].source


def test_two_exchanges_of_axes_are_none():
    once = child("swap_grid_axes", ATTENTION)
    assert "grid = (batch * heads, triton.cdiv(" in once
    assert child("swap_grid_axes", once) == ATTENTION


def test_loads_ahead_are_a_knob_of_their_loop():
    made = child("prefetch_loops", LOOPED)
    assert "num_stages=PREFETCH)" in made
    assert read_knobs(made).default["PREFETCH"] == 3


def test_streams_and_what_all_programs_share_are_told_apart():
    first, last = (item.source for item in found("eviction_hints", RMS_NORM).children[:2])
    streamed = [line for line in first.splitlines() if "evict_first" in line]
    kept = [line for line in last.splitlines() if "evict_last" in line]
    assert all("weight" not in line for line in streamed)
    assert len(kept) == 1
    assert "weight" in kept[0]


ATOMIC = ROWS.replace("tl.store(y_ptr + row", "tl.store(w_ptr + row")
UNKNOWN = WRAPPED.replace("triton.cdiv(n, 64)", "blocks(n)")
UNPACKED = SOFTMAX.replace('num_warps=CONFIG["num_warps"])', "**CONFIG)")


@pytest.mark.parametrize(
    ("name", "source", "target", "reason"),
    [
        ("accumulate_in_dot", SOFTMAX, "cuda:90", "no product"),
        ("even_wraps", UNKNOWN, "cuda:90", "grid"),
        ("hoist_loads", ATOMIC, "cuda:90", "no loop"),
        ("eviction_hints", SOFTMAX, "hip:gfx942", "ignores"),
        ("launch_options", SOFTMAX, "cuda:80", "clusters"),
        ("specialise_warps", GEMM, "cuda:90", "cuda:100"),
        ("split_loop", ATTENTION, "cuda:90", "carries 3 values"),
        ("split_loop", LOOPED, "cuda:90", "one loop"),
        ("tiles_per_program", ATTENTION, "cuda:90", "several axes"),
        ("tiles_per_program", UNPACKED, "cuda:90", "one that unpacks arguments"),
        ("swizzle_programs", SOFTMAX, "cuda:90", "two axes"),
        ("reuse_loads", SOFTMAX, "cuda:90", "no kernel repeats"),
    ],
)
def test_what_keeps_a_rewrite_away_is_said(name, source, target, reason):
    assert reason in refusals(name, source, target)
