"""Spaces grow where a parent's best configurations lie at their ends, within bounds, and nothing else changes."""

import ast
import asyncio
import difflib
from pathlib import Path

import numpy as np
import pytest

import operators
from evo.knobs import read_knobs
from evo.records import CaseResult, Evaluation, LatencyKind, NoProposal, Stage, Status, TrustLevel, Variant
from operators.base import Context, Parent
from operators.rewrite.widen_space import WidenSpace

STARTS = Path(operators.__file__).parents[1] / "evo" / "tasks" / "starts"
SWIGLU = (STARTS / "swiglu.py").read_text()
ATTENTION = (STARTS / "attention.py").read_text()
CONTEXT = Context("task", "", "entry", "", frozenset(), "cuda:90", "3.9")


def evaluated(*configurations):
    cases = tuple(CaseResult(f"case_{i}", item, 0.1, 1.0, 1.0, 1.0, 1.0, 1.0, 9, 0) for i, item in enumerate(configurations))
    passed = (Status.PASSED, Stage.VERIFY, "NVIDIA H200", "plan", TrustLevel.REPLAYED, LatencyKind.MEASURED, 1.0)
    return Evaluation("id", *passed, cases=cases)


def outcome(source, evaluation=None, seed=0):
    parent = Parent(Variant("task", source), evaluation)
    return asyncio.run(WidenSpace().propose((parent,), CONTEXT, np.random.default_rng(seed)))


def spaces(source, evaluation=None):
    """The lists that some seed changes, as (knob, choices)."""
    found = set()
    for seed in range(40):
        made = outcome(source, evaluation, seed)
        if not isinstance(made, NoProposal):
            found |= set(read_knobs(made.source).space.items()) - set(read_knobs(source).space.items())
    return found


def module(space, default):
    return SWIGLU.replace(
        SWIGLU[SWIGLU.index("CONFIG =") : SWIGLU.index("\n\n\n@triton")], f"CONFIG = {default}\nSPACE = {space}"
    )


def test_a_list_grows_at_the_end_where_some_case_is_fastest():
    evaluation = evaluated({"BLOCK": 8192, "num_warps": 4}, {"BLOCK": 1024, "num_warps": 8}, {"BLOCK": 512, "num_warps": 2})
    assert spaces(SWIGLU, evaluation) == {
        ("BLOCK", (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)),
        ("num_warps", (1, 2, 4, 8, 16, 32)),
    }


def test_without_an_evaluation_every_end_counts():
    assert spaces(SWIGLU) == {
        ("BLOCK", (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)),
        ("BLOCK", (64, 128, 256, 512, 1024, 2048, 4096, 8192)),
        ("num_warps", (1, 2, 4, 8, 16, 32)),
    }


def test_the_default_configuration_and_all_but_one_line_stay():
    after = outcome(ATTENTION, evaluated({"BLOCK_M": 64, "BLOCK_N": 128, "num_warps": 4, "num_stages": 3}), 1).source
    changed = [line for line in difflib.ndiff(ATTENTION.splitlines(), after.splitlines()) if line[0] in "+-"]
    assert changed in (
        ['-     "BLOCK_N": [32, 64, 128],', '+     "BLOCK_N": [32, 64, 128, 256, 512],'],
        ['-     "num_warps": [4, 8],', '+     "num_warps": [1, 2, 4, 8],'],
    )
    assert read_knobs(after).default == read_knobs(ATTENTION).default


@pytest.mark.parametrize(
    ("space", "default", "grown"),
    [
        ({"num_warps": [2, 32]}, {"num_warps": 2}, {(1, 2, 32)}),
        ({"num_stages": [1, 7]}, {"num_stages": 1}, {(1, 7, 8)}),
        ({"num_stages": [2, 3]}, {"num_stages": 2}, {(1, 2, 3), (2, 3, 4, 5)}),
        ({"ROWS": [2, 4]}, {"ROWS": 2}, {(1, 2, 4), (2, 4, 8, 16)}),
        ({"BLOCK": [32, 65536]}, {"BLOCK": 32}, {(16, 32, 65536)}),
        ({"BLOCK": [64, 32]}, {"BLOCK": 32}, {(256, 128, 64, 32), (64, 32, 16)}),
        ({"BLOCK": (64,)}, {"BLOCK": 64}, {(64, 128, 256), (16, 32, 64)}),
    ],
)
def test_lists_keep_their_order_and_their_bounds(space, default, grown):
    assert {choices for _, choices in spaces(module(space, default))} == grown


def test_comments_between_choices_survive():
    text = "{\n    'num_warps': [  # few rows\n        4,  # usual\n        8,  # wide\n    ],\n}"
    for seed in range(4):
        after = outcome(module(text, {"num_warps": 4}), None, seed).source
        assert all(after.count(comment) == 1 for comment in ("# few rows", "# usual", "# wide"))
        assert read_knobs(after).space["num_warps"] in ((1, 2, 4, 8), (4, 8, 16, 32))


FULL = {"BLOCK": [16, 65536], "num_warps": [1, 32]}
MIXED = {"BLOCK": [64, 16, 32], "ODD": [3, 5], "FLAG": [False, True], "MODE": ["a", "b"], "maxnreg": [64, 128]}
FIRST = {"BLOCK": 64, "ODD": 3, "FLAG": False, "MODE": "a", "maxnreg": 64}


@pytest.mark.parametrize(
    ("source", "evaluation", "reason"),
    [
        (SWIGLU, evaluated({"BLOCK": 1024, "num_warps": 4}), "fastest at an end"),
        (SWIGLU, Evaluation("id", Status.WRONG_VALUES, Stage.GATE, "NVIDIA H200"), "wrong_values"),
        (module(FULL, {"BLOCK": 16, "num_warps": 1}), None, "at their limits"),
        (module(MIXED, FIRST), None, "at their limits"),
        (module({"num_stages": list(range(2, 66))}, {"num_stages": 2}), None, "at their limits"),  # as long as lists may be
    ],
)
def test_what_cannot_grow_says_why(source, evaluation, reason):
    result = outcome(source, evaluation)
    assert isinstance(result, NoProposal), result.source
    assert not result.failed
    assert reason in result.reason


def test_a_child_is_another_module_with_the_same_code():
    after = ast.parse(outcome(SWIGLU).source)
    before = ast.parse(SWIGLU)
    differing = [a for a, b in zip(before.body, after.body, strict=True) if ast.dump(a) != ast.dump(b)]
    assert [ast.unparse(node.targets[0]) for node in differing] == ["SPACE"]
