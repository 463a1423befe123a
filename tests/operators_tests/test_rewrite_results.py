"""Rewritten kernels compute what the originals do: run under Triton's interpreter, and compiled for a GPU that is not there."""

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evo.knobs import read_knobs
from evo.records import Proposal, Variant
from operators.base import Context, Parent
from operators.rewrite.base_two import BaseTwoExponent
from operators.rewrite.eliminate_masks import EliminateMasks
from operators.rewrite.online_blocks import OnlineBlocks
from operators.rewrite.parameterise_tile import ParameteriseTile
from operators.rewrite.persistent_rows import PersistentRows
from operators.rewrite.rows_per_program import RowsPerProgram
from operators.rewrite.whole_row import WholeRow
from operators.rewrite.widen_space import WidenSpace
from operators.source import NotApplicableError, read_source

HERE = Path(__file__).parent
STARTS = HERE.parents[1] / "evo" / "tasks" / "starts"
TASKS = ("attention", "gemm_bias_gelu", "quantize_rows", "rms_norm", "softmax", "swiglu")
"""Those of which `interpreted/run_modules.py` has inputs; the contract suite takes others."""
SOURCES = {name: (STARTS / f"{name}.py").read_text() for name in TASKS} | {
    path.stem: path.read_text()
    for path in sorted((HERE / "kernels").glob("[a-z]*.py"))
    if "@triton.autotune" not in path.read_text()  # whose launches want a GPU; the contract suite interprets them, too
}
REWRITES = [
    ParameteriseTile(),
    OnlineBlocks(),
    WholeRow(),
    RowsPerProgram(),
    EliminateMasks(),
    WidenSpace(),
    BaseTwoExponent(),
    PersistentRows(),
]
CONTEXT = Context("task", "", "entry", "", frozenset(), "cuda:90", "3.9")
SMALL = dict.fromkeys(("BLOCK", "SIZE", "BLOCK_M", "BLOCK_N", "BLOCK_K", "R", "C"), 16) | {"ROWS": 2, "PROGRAMS": 2}
SAME_BITS = {"parameterise_tile", "eliminate_masks", "widen_space", "persistent_rows"}
EXACT = {"row_max", "quantize_rows", "rope", "add_relu", "scale_columns", "prefix_sum"}


def rewritten(operator, source, seed=0):
    parents = (Parent(Variant("task", source)),)
    return asyncio.run(operator.propose(parents, CONTEXT, np.random.default_rng(seed)))


def all_children(operator, source):
    """What the operator makes of each of its sites."""
    children = set()
    with contextlib.suppress(NotApplicableError):
        for site in operator.sites(read_source(source)):
            if "num_" in site.strategy:  # the interpreter knows no warps and stages
                continue
            with contextlib.suppress(NotApplicableError):
                children.add(site.apply().code)
    return children


def job(kernel, child, config):
    entry = kernel if kernel in TASKS else "entry"
    return {"kernel": kernel, "entry": entry, "original": SOURCES[kernel], "rewritten": child, "config": config}


def run(script, jobs):
    command = [sys.executable, str(HERE / "interpreted" / script)]
    done = subprocess.run(command, input=json.dumps(jobs), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def check(jobs, same_bits):
    for item, verdicts, same in zip(jobs, run("run_modules.py", jobs), same_bits, strict=True):
        for verdict in verdicts:
            where = f"{item['kernel']} {item['config']}\n{item['rewritten']}\n{verdict}"
            assert "failure" not in verdict, where + verdict["failure"]
            assert verdict["error"] <= 2 * verdict["expected_error"] + 2e-6, where
            assert verdict["same_bits"] or not same, where


def test_single_rewrites_are_correct_on_odd_and_even_sizes():
    jobs, same = [], []
    for operator in REWRITES:
        for kernel, source in SOURCES.items():
            # As they are, or with blocks so small that rows take several.
            bits = operator.name in SAME_BITS and kernel != "atomic_sums"  # added in another order
            for child in sorted(all_children(operator, source)):
                jobs.append(job(kernel, child, {"PROGRAMS": 2} if operator.name in SAME_BITS else SMALL))
                same.append(bits or kernel in EXACT)
    check(jobs, same)


def test_random_chains_of_rewrites_stay_correct():
    rng = np.random.default_rng(20)
    jobs = []
    lengths = []
    for kernel, source in SOURCES.items():
        child, length = source, 0
        for _ in range(6):
            proposal = rewritten(REWRITES[rng.integers(len(REWRITES))], child, int(rng.integers(1000)))
            if isinstance(proposal, Proposal):
                child, length = proposal.source, length + 1
        if length:
            read_knobs(child)
            jobs.append(job(kernel, child, SMALL))
            lengths.append(length)
    assert max(lengths) >= 4
    check(jobs, [False] * len(jobs))


@pytest.mark.parametrize("operator", REWRITES, ids=lambda operator: operator.name)
def test_each_rewrite_fires_on_three_kernels(operator):
    sources = dict(SOURCES)
    if operator.name == "whole_row":
        sources |= {name: p.source for name, s in SOURCES.items() if isinstance(p := rewritten(OnlineBlocks(), s), Proposal)}
    assert sum(isinstance(rewritten(operator, source), Proposal) for source in sources.values()) >= 3


def test_every_rewrite_compiles_for_a_gpu_without_one():
    pairs = [
        (ParameteriseTile(), "add_relu"),
        (OnlineBlocks(), "softmax"),
        (OnlineBlocks(), "layer_norm"),
        (WholeRow(), "looped_norm"),
        (RowsPerProgram(), "softmax"),
        (RowsPerProgram(), "looped_norm"),
        (RowsPerProgram(), "prefix_sum"),
        (EliminateMasks(), "gemm_bias_gelu"),
        (EliminateMasks(), "rope"),
        (BaseTwoExponent(), "softmax"),
    ]
    children = [rewritten(operator, SOURCES[kernel]).source for operator, kernel in pairs]
    both = rewritten(OnlineBlocks(), rewritten(RowsPerProgram(), SOURCES["softmax"]).source).source
    children.append(rewritten(OnlineBlocks(), rewritten(BaseTwoExponent(), SOURCES["softmax"]).source).source)
    children += [both, rewritten(EliminateMasks(), both, 1).source]
    for child, stages in zip(children, run("compile_modules.py", children), strict=True):
        assert stages.get("cubin", 0) > 0, f"{stages}\n{child}"


def test_an_even_size_needs_no_predicates_and_an_odd_one_keeps_them():
    child = rewritten(EliminateMasks(), SOURCES["swiglu"]).source
    even, odd = run(
        "compile_modules.py",
        [child.replace("EVEN_COUNT: tl.constexpr", f"EVEN_COUNT: tl.constexpr = {e}") for e in (True, False)],
    )
    assert even["masked_loads"] == 0
    assert odd["masked_loads"] == 2
