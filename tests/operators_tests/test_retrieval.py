"""Likeness of kernels and the examples found by it: what counts as equal, what as similar, and what must never be shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evo.tasks
from operators.base import Example
from operators.likeness import NEAR, normal_form, shingles, similarity
from operators.retrieval import leaks, most_similar

STARTS = {path.stem: path.read_text() for path in sorted((Path(evo.tasks.__path__[0]) / "starts").glob("[a-z]*.py"))}
SOFTMAX = STARTS["softmax"]

SAME = [
    SOFTMAX.replace('"""Row-wise', '"""ROW-wise'),
    SOFTMAX.replace("    mask = columns < n_columns", "    # which columns there are\n    mask = (columns < n_columns)"),
    SOFTMAX.replace("numerator", "e"),
    SOFTMAX.replace("rows, columns = x.shape", "m, n = x.shape")
    .replace("(rows, columns)", "(m, n)")
    .replace("[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns)", "[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n)"),
]
OTHER = [
    SOFTMAX.replace("axis=0", "axis=1", 1),
    SOFTMAX.replace("BLOCK: tl.constexpr", "BLOCK"),
    SOFTMAX.replace('{"num_warps": 8}', '{"num_warps": 4}'),
    SOFTMAX.replace("y_ptr + row", "x_ptr + row"),
    SOFTMAX.replace("    return y\n", "    return x\n"),
    SOFTMAX.replace("tl.exp", "tl.exp2"),
]


@pytest.mark.parametrize("source", SAME)
def test_layout_and_names_of_locals_do_not_make_another_program(source: str) -> None:
    assert source != SOFTMAX
    assert normal_form(source) == normal_form(SOFTMAX)


@pytest.mark.parametrize("source", OTHER)
def test_whatever_may_change_the_result_does(source: str) -> None:
    assert source != SOFTMAX
    assert normal_form(source) != normal_form(SOFTMAX)


def test_names_that_mean_more_than_one_thing_are_kept() -> None:
    first = "def f(x):\n    y = x\n    return [y for y in x]\n"
    assert normal_form(first) != normal_form(first.replace("y", "z"))
    own = "def f(a):\n    a = a + 1\n    return a\n"
    assert normal_form(own) != normal_form("def f(a):\n    b = b + 1\n    return b\n"), "a parameter is no local of that value"
    assert normal_form("def f(x):\n    global y\n    y = x\n") != normal_form("def f(x):\n    global z\n    z = x\n")
    assert normal_form("def f(a, b):\n    a = b\n    return a\n") != normal_form("def f(a, b):\n    b = a\n    return b\n")


def test_two_locals_do_not_become_one() -> None:
    first = "def f(x):\n    a = x\n    b = a + x\n    return a\n"
    assert normal_form(first) != normal_form(first.replace("return a", "return b"))


@pytest.mark.parametrize("source", ["def f(:", "x = 1\0", "x = " + "(" * 5000, "", "x = '\ud800'"])
def test_any_text_can_be_compared(source: str) -> None:
    assert normal_form(source) is None or source in ("", "x = '\ud800'")
    assert 0.0 <= similarity(source, SOFTMAX) <= 1.0
    assert similarity(source, source) == 1.0


@given(st.text(max_size=200), st.text(max_size=200))
def test_similarity_is_symmetric(first: str, second: str) -> None:
    assert similarity(first, second) == similarity(second, first)
    assert shingles(first) == shingles(first + "\n# comment\n") or "'" in first or '"' in first


def test_kernels_of_one_kind_are_more_alike_than_others() -> None:
    renamed = SOFTMAX.replace("columns", "cols").replace("softmax", "norm").replace("8", "4")
    assert similarity(SOFTMAX, renamed) >= NEAR
    assert similarity(SOFTMAX, STARTS["rms_norm"]) > similarity(SOFTMAX, STARTS["gemm_bias_gelu"])


def test_the_most_similar_kernel_is_found_again_and_again() -> None:
    candidates = [Example(source, name) for name, source in STARTS.items()]
    found = [most_similar(SOFTMAX, order, count=2) for order in (candidates, candidates[::-1])]
    assert found[0] == found[1]
    assert len(found[0]) == 2
    assert "softmax" not in {example.origin for example in found[0]}, "the kernel itself teaches nothing"
    best, second = (similarity(SOFTMAX, example.source) for example in found[0])
    assert best >= second


def test_near_duplicates_and_strangers_are_not_examples() -> None:
    twin = STARTS["rms_norm"] + "\n# twin\n"
    found = most_similar(SOFTMAX, [Example(STARTS["rms_norm"], "a", 2.0), Example(twin, "b", 1.0)], count=2)
    assert [example.origin for example in found] == ["a"]
    assert most_similar(SOFTMAX, [Example("print('hello')", "stranger")]) == ()


REFERENCE = (
    "def reference(x, weight, eps):\n    variance = x.float().pow(2).mean(-1, keepdim=True)\n"
    "    normed = x.float() * torch.rsqrt(variance + eps)\n    return (normed * weight.float()).to(x.dtype)\n"
)


@pytest.mark.parametrize(
    "kernel",
    [
        REFERENCE,
        f"import torch\n\n\n{REFERENCE}\n\nother = 1\n",
        "import torch\n" + REFERENCE.replace("    ", "  ").replace("\n", "  # copied\n"),
        f"{SOFTMAX}\n{REFERENCE.replace('eps)', 'epsilon)')}",
    ],
    ids=["itself", "inside", "other layout", "nearly"],
)
def test_a_kernel_that_holds_a_held_out_answer_is_never_an_example(kernel: str) -> None:
    assert leaks(kernel, (REFERENCE,))
    assert most_similar(SOFTMAX, [Example(kernel, "leak", 9.0)], (REFERENCE,)) == ()


def test_what_is_in_every_module_is_no_leak() -> None:
    assert not leaks(SOFTMAX, (REFERENCE, "return y", "", "import torch"))
