"""Forms that kernels of other projects have and those of this one have not, which rewrites read or tell from what they must not touch."""

import pytest

from evo.registry import find_operators
from experiments.rewrites.offer_child import EXPOSING, Offering
from experiments.rewrites.reaching import reaches
from operators.rewrite.base import Rewrite
from tests.operators_tests.offering import child, refusals

HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n\n"
TUTORIAL_NORM = (
    HEAD
    + """\
@triton.jit
def norm_kernel(X, Y, N, eps, BLOCK: tl.constexpr):
    X += tl.program_id(0) * N
    Y += tl.program_id(0) * N
    mean = 0
    _mean = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        a = tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
        _mean += a
    mean = tl.sum(_mean, axis=0) / N
    _var = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        x = tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
        x = tl.where(cols < N, x - mean, 0.0)
        _var += x * x
    rstd = 1 / tl.sqrt(tl.sum(_var, axis=0) / N + eps)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        x = tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
        x = tl.where(cols < N, x, 0.0)
        tl.store(Y + cols, (x - mean) * rstd, mask=cols < N)


def norm(x):
    y = torch.empty_like(x)
    norm_kernel[(x.shape[0],)](x, y, x.shape[1], 1e-5, BLOCK=64)
    return y
"""
)
PAIR = (
    HEAD
    + """\
@triton.jit
def double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def triple_kernel(x_ptr, z_ptr, n, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(z_ptr + at, 3 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


def both(x, options):
    y, z, n = torch.empty_like(x), torch.empty_like(x), x.numel()
    grid = lambda meta: (triton.cdiv(n, 64),)
    double_kernel[grid](x, y, n, BLOCK=64, **options)
    triple_kernel[grid](x, z, n, TILE=64, **options)
    return y, z
"""
)
OWN_GRIDS = (
    PAIR.replace("    grid = lambda meta: (triton.cdiv(n, 64),)\n", "")
    .replace("[grid](x, y", '[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y')
    .replace("[grid](x, z", '[lambda meta: (triton.cdiv(n, meta["TILE"]),)](x, z')
)
TWICE = (
    HEAD
    + """\
@triton.jit
def twice_kernel(q_ptr, k_ptr, c_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    c = tl.load(c_ptr + at, mask=at < n, other=0.0)
    tl.store(q_ptr + at, tl.load(q_ptr + at, mask=at < n) * c, mask=at < n)
    again = tl.load(c_ptr + at, mask=at < n, other=0.0)
    tl.store(k_ptr + at, tl.load(k_ptr + at, mask=at < n) * again, mask=at < n)


def twice(q, k, c):
    twice_kernel[(1,)](q, k, c, q.numel(), BLOCK=64)
"""
)
COUNTED = (
    HEAD
    + """\
@triton.jit
def count_kernel(x_ptr, total_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total_ptr, tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0), axis=0))


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


def count(x, copied):
    n = x.numel()
    grid = (triton.cdiv(n, 64),)
    if copied is not None:
        copy_kernel[grid](x, copied, n, BLOCK=64)
    total = torch.zeros((), dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(n, 64),)
    count_kernel[grid](x, total, n, BLOCK=64)
    return total
"""
)
GRADIENT = (
    HEAD
    + """\
@triton.jit
def gradient_kernel(x_ptr, dw_ptr, stride, n, WITH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    if WITH:
        tl.store(dw_ptr + row * stride + at, tl.load(x_ptr + row * n + at, mask=at < n, other=0.0), mask=at < n)


def gradient(x, wanted):
    if wanted:
        parts = torch.empty((x.shape[0], x.shape[1]), dtype=torch.float32, device=x.device)
    else:
        parts = None
    gradient_kernel[(x.shape[0],)](x, parts, parts.stride(0) if wanted else 0, x.shape[1], WITH=wanted, BLOCK=64)
    return parts.sum(dim=0) if wanted else None
"""
)


def test_a_kernel_that_flag_gems_keeps_binaries_of_is_launched_as_written_and_unknown_decorators_are_not_trusted():
    cached = PAIR.replace("@triton.jit\ndef double", "@libentry()\n@triton.jit\ndef double")
    assert "double_kernel_triple_kernel" in child("fuse_launches", cached)
    assert "decorator that is not Triton's" in refusals("fuse_launches", cached.replace("libentry", "traced"))


def test_a_choice_that_repeats_a_mask_goes_where_names_are_assigned_again_in_each_loop():
    made = child("flatten_where", TUTORIAL_NORM)
    assert "tl.where(cols < N, x, 0.0)" not in made
    assert "x = x\n" not in made
    assert "tl.where(cols < N, x - mean, 0.0)" in made, "this one is not zero beyond the row"
    moved = TUTORIAL_NORM.replace(
        "        x = tl.where(cols < N, x, 0.0)", "        cols += 1\n        x = tl.where(cols < N, x, 0.0)"
    )
    assert "no tl.where repeats" in refusals("flatten_where", moved)


def test_a_mean_that_begins_as_a_number_is_a_mean():
    assert "lane_means" in child("welford", TUTORIAL_NORM)


def test_launches_that_share_a_grid_and_unpack_the_same_options_become_one():
    made = child("fuse_launches", PAIR)
    assert made.count("**options") == 1
    assert made.count("[grid](") == 1
    other = PAIR.replace("n, TILE=64, **options", "n, TILE=64, **{}")
    assert "unpack different options" in refusals("fuse_launches", other)


def test_grids_that_read_alike_and_have_tiles_of_different_sizes_are_different():
    assert "double_kernel_triple_kernel" in child("fuse_launches", OWN_GRIDS)
    assert "the grids of" in refusals("fuse_launches", OWN_GRIDS.replace("TILE=64", "TILE=32"))
    alike = OWN_GRIDS.replace("TILE", "BLOCK").replace("z, n, BLOCK=64", "z, n, BLOCK=32")
    assert "the grids of" in refusals("fuse_launches", alike)


def test_a_value_stays_known_where_only_other_tensors_are_stored_to():
    assert "k_ptr + at, mask=at < n) * again" in child("reuse_loads", TWICE)
    assert "again = c" in child("reuse_loads", TWICE)
    assert "no kernel repeats a load" in refusals("reuse_loads", TWICE.replace("(q, k, c, q", "(q, k, q, q"))
    spread = TWICE.replace("(q, k, c, q.numel()", "(\n        q.to(\n            q.dtype\n        ), k, c, q.numel()")
    assert "again = c" in child("reuse_loads", spread), "arguments may go over several lines"
    view = TWICE.replace("def twice(q, k, c):\n", "def twice(q, k):\n    c = q.view(-1)\n")
    assert "no kernel repeats a load" in refusals("reuse_loads", view)


def test_a_grid_that_serves_two_launches_can_be_read():
    made = child("stage_atomics", COUNTED)
    assert "count_kernel_add[" in made
    loop = COUNTED.replace(
        "    grid = (triton.cdiv(n, 64),)\n    count", "    if n > 64:\n        grid = (triton.cdiv(n, 64),)\n    count"
    )
    assert "grid" in refusals("stage_atomics", loop)


def test_partial_sums_that_may_be_none_are_partial_sums():
    made = child("add_partials_atomically", GRADIENT)
    assert "tl.atomic_add(dw_ptr" in made
    assert "torch.zeros((x.shape[1]" in made


def test_a_child_counts_where_calls_reach_what_it_changes():
    changed = PAIR.replace("3 * tl", "4 * tl")
    assert reaches(PAIR, changed, {"triple_kernel", "both"})
    assert not reaches(PAIR, changed, {"double_kernel", "both"}), "the kernel that changed did not run"
    assert reaches(PAIR, PAIR.replace("x.numel()", "x.nelement()"), {"both"})
    assert reaches(PAIR, PAIR + "\nSPACE = {}\n", set()), "no function changed"


@pytest.mark.parametrize(("reached", "expected"), [({"both", "double_kernel", "triple_kernel"}, True), (set(), False)])
def test_what_a_move_prepares_is_offered_after_it(reached, expected):
    rewrites = {name: cls() for name, cls in find_operators().items() if issubclass(cls, Rewrite)}
    answer = Offering(rewrites, PAIR, reached, 1).answer(["widen_space"])
    made = answer["made"]["widen_space"]
    assert made["applies"] is False
    assert bool(made["children"]) is expected
    assert (EXPOSING in answer["parents"]) is expected
