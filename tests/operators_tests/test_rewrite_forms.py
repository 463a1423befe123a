"""Rewrites keep what they do not touch, follow what depends on a change, and say why they do not apply."""

import asyncio
import difflib
from pathlib import Path

import numpy as np
import pytest

from evo.knobs import read_knobs
from evo.records import NoProposal, Variant
from operators.base import Context, Parent
from operators.rewrite.base_two import BaseTwoExponent
from operators.rewrite.eliminate_masks import EliminateMasks
from operators.rewrite.online_blocks import OnlineBlocks
from operators.rewrite.parameterise_tile import ParameteriseTile
from operators.rewrite.rows_per_program import RowsPerProgram
from operators.rewrite.whole_row import WholeRow
from operators.rewrite.widen_space import WidenSpace

HERE = Path(__file__).parent
STARTS = HERE.parents[1] / "evo" / "tasks" / "starts"
CONTEXT = Context("task", "", "entry", "", frozenset(), "cuda:90", "3.9")


def read(name):
    path = HERE / "kernels" / f"{name}.py"
    return (path if path.exists() else STARTS / f"{name}.py").read_text()


def outcome(operator, source, seed=0):
    return asyncio.run(operator.propose((Parent(Variant("task", source)),), CONTEXT, np.random.default_rng(seed)))


def child(operator, source, strategy=""):
    made = [outcome(operator, source, seed) for seed in range(8)]
    return next(item.source for item in made if strategy in getattr(item, "strategy", ""))


def removed(before, after):
    return [line[1:].strip() for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line.startswith("- ")]


def test_only_the_launch_changes_when_a_literal_becomes_a_knob():
    source = read("add_relu")
    after = child(ParameteriseTile(), source, "tile size BLOCK")
    assert removed(source, after) == ["add_relu[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)"]
    assert "# 1024 elements each" in after
    assert read_knobs(after).space["BLOCK"] == (256, 512, 1024, 2048, 4096)
    assert "1024)" not in after


@pytest.mark.parametrize(("block", "source"), [("R", "tile_rows"), ("C", "TILE_COLUMNS")])
def test_constants_that_feed_a_tile_become_knobs_for_the_grid_too(block, source):
    after = child(ParameteriseTile(), read("scale_columns"), f"tile size {block} ")
    assert read_knobs(after).default[block] == (16 if block == "R" else 32)
    wrapper = after.split("def entry")[1]
    assert f'= CONFIG["{block}"]' in wrapper or wrapper.count(f'CONFIG["{block}"]') == 2


def test_comments_and_other_functions_survive_every_rewrite():
    extra = "\n\ndef untouched( a,b ):   # odd layout\n    return {  'a':a }\n"
    for operator, kernel in (
        (OnlineBlocks(), "layer_norm"),
        (RowsPerProgram(), "layer_norm"),
        (EliminateMasks(), "layer_norm"),
        (ParameteriseTile(), "layer_norm"),
        (WholeRow(), "looped_norm"),
        (WidenSpace(), "l2_normalise"),
        (BaseTwoExponent(), "softmax"),
    ):
        source = read(kernel) + extra
        after = outcome(operator, source).source
        comments = [line[line.index("#") :] for line in source.splitlines() if "#" in line]
        assert extra in after
        for comment in comments:
            assert after.count(comment) == 1, f"{operator.name} {comment}\n{after}"


def test_a_tile_that_becomes_a_knob_takes_its_divisibility_flag_along():
    even = child(EliminateMasks(), read("add_relu"))
    assert "EVEN_N=n % 1024 == 0" in even
    after = child(ParameteriseTile(), even, "tile size BLOCK")
    assert 'EVEN_N=n % CONFIG["BLOCK"] == 0' in after


def test_blocks_and_whole_rows_take_divisibility_flags_along():
    even = child(EliminateMasks(), read("softmax"))
    blocks = child(OnlineBlocks(), even)
    assert 'EVEN_N_COLUMNS=columns % (min(triton.next_power_of_2(columns), CONFIG["BLOCK"])) == 0' in blocks.replace(
        "\n", ""
    ) or ('EVEN_N_COLUMNS=columns % min(triton.next_power_of_2(columns), CONFIG["BLOCK"]) == 0' in blocks)


def test_a_whole_row_loads_once_and_drops_the_knob():
    after = child(WholeRow(), child(OnlineBlocks(), read("softmax")))
    assert after.count("tl.load") == 1
    assert "BLOCK" not in read_knobs(after).default
    assert "for " not in after


def test_softmax_needs_two_passes_and_layer_norm_three():
    assert child(OnlineBlocks(), read("softmax")).count("for start in") == 2
    assert child(OnlineBlocks(), read("layer_norm")).count("for start in") == 3
    assert child(OnlineBlocks(), read("row_max")).count("for start in") == 1


def test_rows_become_a_second_dimension_where_possible_and_a_loop_elsewhere():
    assert "keep_dims=True" in child(RowsPerProgram(), read("softmax"))
    assert "for row_in_program in range(0, ROWS)" in child(RowsPerProgram(), read("prefix_sum"))
    assert 'triton.cdiv(x.shape[0], CONFIG["ROWS"])' in child(RowsPerProgram(), read("prefix_sum"))


HALF_ROW = read("row_max").replace(".to(tl.float32)", "")
IN_PLACE = read("rope").replace("x, cos, sin, out", "x, cos, sin").replace("out_ptr, half", "half").replace("out_ptr", "x_ptr")
SHIFTED = read("softmax").replace("tl.store(y_ptr + row * n_columns + columns", "tl.store(x_ptr + row * n_columns + columns + 1")
FIXED_GRID = read("add_relu").replace("(triton.cdiv(n, 1024),)", "(blocks(n),)")
EARLY = read("row_max").replace("    cols =", "    if row > n:\n        return\n    cols =")
HEADS = read("add_relu").replace("    mask = offs < n\n", "    mask = offs < BLOCK\n")


@pytest.mark.parametrize(
    ("operator", "source", "reason"),
    [
        (OnlineBlocks(), read("prefix_sum"), "cumsum"),
        (OnlineBlocks(), HALF_ROW, "float32"),
        (OnlineBlocks(), SHIFTED, "stores through x_ptr"),
        (OnlineBlocks(), EARLY, "return"),
        (OnlineBlocks(), read("swiglu"), "no kernel has the form"),
        (WholeRow(), read("gemm_bias_gelu"), "multiplies matrices"),
        (RowsPerProgram(), read("gemm_bias_gelu"), "works on a tile"),
        (RowsPerProgram(), EARLY, "returns early"),
        (EliminateMasks(), FIXED_GRID, "grid"),
        (EliminateMasks(), HEADS, "may be larger"),
    ],
)
def test_a_rewrite_that_does_not_apply_says_why(operator, source, reason):
    result = outcome(operator, source)
    assert isinstance(result, NoProposal), result.source
    assert not result.failed
    assert reason in result.reason


def test_a_whole_row_block_is_no_tile_size():
    fixed = read("softmax").replace("BLOCK=triton.next_power_of_2(columns)", "BLOCK=4096")
    assert isinstance(outcome(ParameteriseTile(), fixed), NoProposal)
