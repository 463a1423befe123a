"""An autotuner's configurations become knobs, whatever way their author wrote them, or the kernel is left alone with a reason."""

import asyncio

import numpy as np
import pytest

from evo.knobs import read_knobs
from evo.records import NoProposal, Proposal, Variant
from operators.base import Context, Parent
from operators.rewrite.unfold_autotune import UnfoldAutotune

CONTEXT = Context("task", "", "add", "", frozenset(), "cuda:90", "3.9")
MODULE = """
import torch
import triton
import triton.language as tl
{before}

@triton.autotune(configs={configs}, key=["n"]{more})
@triton.jit
def add_kernel(x, y, n, BLOCK: tl.constexpr):  # adds one
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def add(x):
    y = torch.empty_like(x)
    add_kernel[lambda META: (triton.cdiv(x.numel(), META["BLOCK"]),)](x, y, x.numel())
    return y
"""
LIST = "[triton.Config({'BLOCK': 512}, num_warps=8), triton.Config({'BLOCK': 128})]"
LOOPS = """
WARPS = [2, 4]
def configurations():
    found = []
    for block in range(256, 1025, 256):
        if block != 768:
            for warps in WARPS:
                found.append(triton.Config({"BLOCK": block, }, num_warps=warps, num_stages=2 if warps > 2 else 3))
    return found
"""


def unfolded(configs: str, before: str = "", more: str = "") -> Proposal | NoProposal:
    source = MODULE.format(configs=configs, before=before, more=more)
    parent = Parent(Variant("task", source))
    return asyncio.run(UnfoldAutotune().propose((parent,), CONTEXT, np.random.default_rng(0)))


def test_a_list_becomes_knobs_with_the_first_configuration_as_default_and_the_others_as_hints() -> None:
    made = unfolded(LIST)
    assert isinstance(made, Proposal)
    knobs = read_knobs(made.source)
    assert knobs.default == {"BLOCK": 512, "num_warps": 8}
    assert knobs.hints == ({"BLOCK": 128, "num_warps": 4},), "a configuration without num_warps has Triton's default"
    assert knobs.space["BLOCK"] == (64, 128, 256, 512, 1024)
    assert "@triton.autotune" not in made.source
    assert "# adds one" in made.source
    assert 'BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])' in made.source


def test_a_limit_of_registers_that_some_configurations_have_may_be_none() -> None:
    made = unfolded("[triton.Config({'BLOCK': 512}, maxnreg=64), triton.Config({'BLOCK': 128})]")
    assert isinstance(made, Proposal)
    assert read_knobs(made.source).space["maxnreg"] == (64, 0)
    assert 'BLOCK=CONFIG["BLOCK"], maxnreg=CONFIG["maxnreg"] or None)' in made.source


@pytest.mark.parametrize(
    ("configs", "before"),
    [
        ("[triton.Config({'BLOCK': b}, num_warps=w) for b in (256, 512, 1024) for w in [2, 4] if b // w >= 64]", ""),
        ("configurations()", LOOPS),
        ("TABLE", "TABLE = [triton.Config(kwargs={'BLOCK': 2 * 128}, num_warps=2), triton.Config({'BLOCK': 1024}, num_warps=4)]"),
    ],
)
def test_comprehensions_functions_and_constants_are_followed(configs: str, before: str) -> None:
    made = unfolded(configs, before)
    assert isinstance(made, Proposal), made
    knobs = read_knobs(made.source)
    assert knobs.default["BLOCK"] == 256
    assert {256, 512, 1024} <= set(knobs.space["BLOCK"])
    assert any(hint["BLOCK"] == 1024 for hint in knobs.hints)


@pytest.mark.parametrize(
    ("configs", "before", "more", "reason"),
    [
        ("[triton.Config({'BLOCK': 512}, pre_hook=zero)]", "", "", "pre_hook"),
        ("[triton.Config({'BLOCK': size()})]", "", "", "size"),
        ("[triton.Config({'BLOCK': torch.cuda.device_count()})]", "", "", "torch.cuda"),
        ("[triton.Config({'BLOCK': 512}), triton.Config({'OTHER': 1})]", "", "", "different parameters"),
        (
            LIST,
            "def prune(cs, args):\n    cs[0].kwargs['BLOCK'] = 64\n    return cs",
            ", prune_configs_by={'p': prune}",
            "prunes",
        ),
        (LIST, "", ", prune_configs_by=rules", "prunes"),
        ("[]", "", "", "no list"),
        ("endless()", "def endless():\n    return [endless(), endless()]", "", "long|deep|recursion"),
        ("[triton.Config({'BLOCK': b}) for b in range(1000000000)]", "", "", "long"),
    ],
)
def test_what_cannot_be_read_is_left_alone(configs: str, before: str, more: str, reason: str) -> None:
    made = unfolded(configs, before, more)
    assert isinstance(made, NoProposal)
    assert any(word in made.reason for word in reason.split("|")), made.reason


def test_pruning_that_only_drops_configurations_is_left_to_tuning() -> None:
    before = "def prune(cs, args):\n    return [c for c in cs if c.kwargs['BLOCK'] <= args['n']]\n"
    made = unfolded(LIST, before, ", prune_configs_by={'early_config_prune': prune, 'top_k': 2}")
    assert isinstance(made, Proposal)
    assert read_knobs(made.source).default["BLOCK"] == 512


def test_a_kernel_whose_autotuner_is_asked_for_its_choice_is_left_alone() -> None:
    made = unfolded(LIST, "def chosen():\n    return add_kernel.best_config\n")
    assert isinstance(made, NoProposal)
    assert "used otherwise" in made.reason


def test_two_kernels_get_knobs_of_their_own() -> None:
    source = MODULE.format(configs=LIST, before="", more="")
    second = source[source.index("@triton.autotune") :].replace("add_kernel", "other_kernel").replace("def add(", "def other(")
    parent = Parent(Variant("task", source + "\n\n" + second))
    for seed in (1, 2):
        made = asyncio.run(UnfoldAutotune().propose((parent,), CONTEXT, np.random.default_rng(seed)))
        assert isinstance(made, Proposal)
        parent = Parent(Variant("task", made.source))
    knobs = read_knobs(parent.variant.source)
    assert set(knobs.default) == {"BLOCK", "num_warps", "BLOCK_2", "num_warps_2"}
    assert len(knobs.hints) == 2
