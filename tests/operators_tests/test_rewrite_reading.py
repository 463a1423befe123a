"""What rewrites read of kernels that were not written for them: options in a dictionary, moved pointers, early returns, autotuners."""

from pathlib import Path

import pytest

from operators.crossover_loops import exchanges, segments
from operators.edits import replaced
from operators.rewrite.accesses import calls_of
from operators.rewrite.aliases import Aliases
from operators.rewrite.drop_copies import DropCopies
from operators.rewrite.matrices import matrix_tile
from operators.rewrite.memory import bases
from operators.rewrite.parameterise_tile import ParameteriseTile
from operators.rewrite.repeating import repeatable
from operators.rewrite.stream_rounds import StreamRounds
from operators.rewriting import offers
from operators.source import NotApplicableError, read_source

STARTS = Path(__file__).parents[2] / "evo" / "tasks" / "starts"
GEMM = (STARTS / "gemm_bias_gelu.py").read_text()
ROWS = """
import torch
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, y_ptr, stride, n, count, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if row >= count:
        return
    x_ptr += row * stride  # this row
    y_ptr += row * stride
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + columns, mask=columns < n)
    tl.store(y_ptr + columns, 2.0 * x, mask=columns < n)


def entry(x, options):
    y = torch.empty_like(x)
    scale[(x.shape[0],)](x, y, x.stride(0), x.shape[1], x.shape[0], BLOCK=64, **options)
    return y
"""


def test_a_launch_that_unpacks_options_alone_shows_its_arguments():
    source = read_source(ROWS)
    (launch,) = source.launches_of(source.kernels["scale"])
    assert launch.unpacks
    assert launch.text("n") == "x.shape[1]"
    assert not offers(ParameteriseTile(), ROWS).children  # the dictionary may have num_warps
    hidden = read_source(ROWS.replace("BLOCK=64, **options", "**options"))
    with pytest.raises(NotApplicableError, match="unpacks"):
        hidden.launches_of(hidden.kernels["scale"])
    for knobs in (ROWS.replace("**options", "**CONFIG"), ROWS.replace("    y =", "    options = dict(CONFIG)\n    y =")):
        assert not read_source(knobs).launches  # a new knob would be passed twice


def test_decorators_of_others_hide_a_launch_and_an_autotuner_only_what_it_chooses():
    tuned = ROWS.replace("@triton.jit", '@triton.autotune([triton.Config({"BLOCK": 64})], key=[])\n@triton.jit').replace(
        "BLOCK=64, ", ""
    )
    source = read_source(tuned.replace(", **options", ""))
    (launch,) = source.launches_of(source.kernels["scale"])
    assert launch.text("n") == "x.shape[1]"
    with pytest.raises(NotApplicableError, match="does not give BLOCK"):
        launch.text("BLOCK")
    other = read_source(ROWS.replace("@triton.jit", "@counted\n@triton.jit"))
    with pytest.raises(NotApplicableError, match="not Triton's"):
        other.launches_of(other.kernels["scale"])


def test_a_kernel_that_moves_its_arguments_and_returns_early_becomes_repeatable():
    source = read_source(ROWS)
    again, kernel = repeatable(source, source.kernels["scale"])
    text = again.module.code
    assert "x_ptr_here = x_ptr" in text
    assert "if row < count:" in text
    assert "return\n" not in text.split("def entry")[0]
    assert "x_ptr_here += row * stride  # this row" in text
    assert sorted(bases(kernel).values()) == ["x_ptr", "y_ptr"]
    hidden = ROWS.replace("    x = tl.load", "    for i in range(2):\n        if n > i:\n            return\n    x = tl.load")
    source = read_source(hidden)
    with pytest.raises(NotApplicableError, match="returns a value, or early"):
        repeatable(source, source.kernels["scale"])


def test_a_tile_behind_moving_pointers_is_read_as_part_of_its_matrix():
    kernel = read_source(GEMM).kernels["gemm_bias_gelu_kernel"]
    first, second = (matrix_tile(kernel, call) for call in calls_of(kernel.node.body, "load")[:2])
    assert [(axis.start, axis.bound, axis.stride) for axis in first.axes] == [("tile_m * BLOCK_M", "M", "K"), ("start", "K", "1")]
    assert [(axis.start, axis.bound, axis.stride) for axis in second.axes] == [
        ("start", "K", "N"),
        ("tile_n * BLOCK_N", "N", "1"),
    ]
    wrong = read_source(GEMM.replace("a_ptrs += BLOCK_K", "a_ptrs += 2 * BLOCK_K")).kernels["gemm_bias_gelu_kernel"]
    with pytest.raises(NotApplicableError, match="by a block a round"):
        matrix_tile(wrong, calls_of(wrong.node.body, "load")[0])


def test_rounds_that_differ_between_tiles_are_not_streamed():
    causal = GEMM.replace("range(0, K, BLOCK_K)", "range(0, tile_m * BLOCK_M, BLOCK_K)")
    (site,) = offers(StreamRounds(), causal).sites
    assert "same for all tiles" in site.reason


def test_views_of_a_tensor_may_be_the_tensor():
    source = read_source(ROWS.replace("return y", "flat = y.view(-1)\n    z = torch.empty_like(y)\n    return flat"))
    aliases = Aliases(source.launches[0].function)
    assert aliases.root("flat") == aliases.root("y")
    assert aliases.root("z") != aliases.root("y") != aliases.root("x")


def test_a_copy_stays_where_something_else_depends_on_its_strides():
    text = ROWS.replace("    y = torch.empty_like(x)", "    x = x.contiguous()\n    y = torch.empty_like(x)")
    (site,) = offers(DropCopies(), text).sites
    assert "how many axes x has is not told" in site.reason
    told = text.replace("    y =", "    rows, columns = x.shape\n    y =")
    (site,) = offers(DropCopies(), told).sites
    assert "stride of x along axis 1" in site.reason


def test_kernels_exchange_loops_whose_names_fit_and_no_others():
    kernel = read_source(GEMM).kernels["gemm_bias_gelu_kernel"]
    assert [item.label for item in segments(kernel)] == ["prologue 1", "loop 1", "epilogue"]
    other = GEMM.replace("accumulator = tl.dot(a, b, accumulator)", "accumulator += tl.dot(a, b)").replace(
        "y = gelu(accumulator", "y = gelu(scale * accumulator"
    )
    pairs = list(exchanges(kernel, read_source(other.replace("    bias =", "    scale = 1.0\n    bias =")).kernels[kernel.name]))
    assert [new.label for _, new in pairs] == ["loop 1", "epilogue"]
    early = other.replace("    pid =", "    scale = 1.0\n    pid =", 1)
    pairs = list(exchanges(kernel, read_source(early).kernels[kernel.name]))
    assert [new.label for _, new in pairs] == ["prologue 1", "loop 1"]  # the epilogue needs what this prologue lacks


def test_an_expression_is_found_where_it_goes_over_several_lines():
    wide = ROWS.replace("x_ptr + columns, mask", "x_ptr +\n        columns, mask")
    assert "tl.load(there, mask" in replaced(read_source(wide).module, "x_ptr + columns", "there").code
