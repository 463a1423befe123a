"""What wrappers and modules of other projects write: arguments they unpack, weights they transform, copies, loads in branches."""

from pathlib import Path

import pytest

from tests.operators_tests.offering import child, edited, refusals

KERNELS = Path(__file__).parent / "kernels"
UNPACKED = (KERNELS / "one_pass_norm.py").read_text()
WEIGHTS = (KERNELS / "module_weights.py").read_text()
LINE = "        weight = self.weight.t().to(torch.float16).contiguous()\n"


def unpacking(strides, before=""):
    """The kernel with another launch: `x`'s strides unpacked so, after such statements."""
    made = edited(UNPACKED, "*x.stride(), *y.stride()", f"{strides}, y.stride(0), y.stride(1)")
    return edited(made, "    options =", f"{before}    options =")


def test_strides_tuples_and_dictionaries_are_written_out():
    made = child("name_arguments", UNPACKED)
    launch = made[made.index("one_pass_norm[") :]
    assert "y, x.stride(0), x.stride(1), y.stride(0), y.stride(1), steps[0], n," in launch
    assert 'BLOCK=options["BLOCK"], num_warps=options["num_warps"])' in launch


@pytest.mark.parametrize(
    ("strides", "before", "written"),
    [
        ("*((x.stride(0), 1) if w is None else (n, 1))", "", "x.stride(0) if w is None else n, 1, y"),
        ("*steps_of_x", "    steps_of_x = x.stride()\n", "steps_of_x[0], steps_of_x[1], y"),
        ("*x.stride()", "    x = x.contiguous()\n", "x.stride(0), x.stride(1), y"),
    ],
)
def test_other_ways_to_unpack_strides(strides, before, written):
    assert written in child("name_arguments", unpacking(strides, before))


@pytest.mark.parametrize(
    ("strides", "before"),
    [
        ("*both", "    both = [x.stride(0), x.stride(1)]\n"),
        ("*both", "    both = (x.stride(0), x.stride(1))\n    if w is not None:\n        both = (1, 2, 3)[:2]\n"),
        ("*((1, 2) if w is None else x.stride())", ""),
        ("*strides_of(x)", ""),
    ],
)
def test_what_may_have_another_number_of_parts_stays(strides, before):
    source = unpacking(strides, before).replace(", *steps,", ", steps[0],").replace(", **options)", ', BLOCK=options["BLOCK"])')
    assert "fixed number of parts" in refusals("name_arguments", source)


def test_a_comment_behind_strides_stays_and_hides_none_of_them():
    broken = edited(UNPACKED, "*y.stride(), *steps, n,", "*y.stride(),  # rows first\n        *w.stride(),\n        n,")
    assert "*y.stride(),  # rows first\n        *w.stride()," in child("name_arguments", broken)
    assert "steps[0],  # one\n" in child("name_arguments", edited(UNPACKED, "*steps, n,", "*steps,  # one\n        n,"))


@pytest.mark.parametrize(
    "change",
    ['    options["num_stages"] = 2\n', "    options.update(num_stages=2)\n", "    tune(options)\n"],
)
def test_a_dictionary_that_may_change_stays(change):
    source = edited(UNPACKED, "    steps =", f"{change}    steps =").replace("*x.stride(), *y.stride(), *steps", "1, 2, 3, 4, 5")
    assert "fixed number of parts" in refusals("name_arguments", source)


def test_axes_are_not_told_by_the_shape_of_what_the_name_was_before():
    source = (
        unpacking("*x.stride()", "    x = x.view(rows, 1, n)\n")
        .replace(", *steps,", ", *unknown(w),")
        .replace(", **options)", ", BLOCK=16)")
    )
    assert "fixed number of parts" in refusals("name_arguments", source)


def test_a_part_of_an_expression_is_prepared_and_the_rest_stays():
    source = edited(WEIGHTS, LINE, "        weight = self.weight.t().to(torch.float16).contiguous().view(x.shape[1])\n")
    made = child("prepare_weights", source)
    assert "weight = prepared_weight.view(x.shape[1])" in made
    assert "self.prepared_weight = (self.weight.t().to(torch.float16).contiguous()).detach()" in made


def test_a_branch_that_asks_nothing_but_the_module_keeps_its_question():
    made = child(
        "prepare_weights", edited(WEIGHTS, LINE, f"        if self.training:\n    {LINE}        else:\n            weight = 0\n")
    )
    assert "        if self.training:\n            self.prepared_weight =" in made


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (f"        if x.is_cuda:\n    {LINE}", "no kernel has the form"),
        ("        weight = self.weight.half() if x.is_cuda else self.weight\n", "no kernel has the form"),
        (f"{LINE}        weight.mul_(2)\n", "changes weight in place"),
        (f"{LINE}        weight *= 2\n", "changes weight in place"),
        (f"{LINE}        self.weight.mul_(2)\n", "forward changes what"),
        ("        x = self.weight(x)\n" + LINE, "forward changes what"),
        (LINE.replace("self.weight.t()", "(self.weight.t() + x)"), "no kernel has the form"),
    ],
)
def test_what_is_not_the_same_in_each_call_is_not_prepared(new, reason):
    assert reason in refusals("prepare_weights", edited(WEIGHTS, LINE, new))


def test_what_a_kernel_writes_to_is_not_prepared():
    swapped = edited(WEIGHTS, "(x, weight, y,", "(x, y, weight,")
    assert "may write to weight" in refusals("prepare_weights", swapped)


BRANCHES = """\
import torch
import triton
import triton.language as tl


@triton.jit
def choose(x_ptr, y_ptr, n, FLAG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
    if FLAG:
        tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n).to(tl.float32) + x, mask=at < n)


def entry(x):
    y = torch.empty_like(x)
    choose[(1,)](x, y, x.numel(), FLAG=True, BLOCK=64)
    return y
"""


def test_a_branch_knows_what_was_loaded_before_it_cast_and_all():
    assert "tl.store(y_ptr + at, x + x, mask=at < n)" in child("reuse_loads", BRANCHES)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    if FLAG:\n", "    tl.debug_barrier()\n    if FLAG:\n"),
        ("    if FLAG:\n", "    at += 1\n    if FLAG:\n"),
        ("    if FLAG:\n", "    for at in range(2):\n"),
        (".to(tl.float32) + x", ".to(tl.float16) + x"),
        ("    if FLAG:\n", "    if FLAG:\n        tl.store(x_ptr + at, 0.0)\n"),
    ],
)
def test_a_branch_loads_again_what_may_have_changed(old, new):
    assert "repeats a load" in refusals("reuse_loads", edited(BRANCHES, old, new))
