"""The rule-based crossover takes parts that fit, with all they need, and never returns a parent."""

import ast
import asyncio
from pathlib import Path

import numpy as np

import operators
from evo.knobs import read_knobs
from evo.records import NoProposal, Proposal, Variant
from operators.base import Context, Parent
from operators.crossover import ExchangeParts
from operators.rewrite.eliminate_masks import EliminateMasks
from operators.rewrite.online_blocks import OnlineBlocks
from operators.rewrite.rows_per_program import RowsPerProgram

STARTS = Path(operators.__file__).parents[1] / "evo" / "tasks" / "starts"
SOFTMAX = (STARTS / "softmax.py").read_text()
GEMM = (STARTS / "gemm_bias_gelu.py").read_text()


def context(entry):
    return Context(entry, "", entry, "", frozenset(), "cuda:90", "3.9")


def outcome(operator, entry, *sources, seed=0):
    parents = tuple(Parent(Variant(entry, source)) for source in sources)
    return asyncio.run(operator.propose(parents, context(entry), np.random.default_rng(seed)))


def children(entry, first, second):
    outcomes = [outcome(ExchangeParts(), entry, first, second, seed=seed) for seed in range(12)]
    return {item.source: item.strategy for item in outcomes if isinstance(item, Proposal)}


def test_knob_values_come_from_both_parents_and_stay_in_the_space():
    tuned = GEMM.replace('"BLOCK_M": 128, "BLOCK_N": 128', '"BLOCK_M": 64, "BLOCK_N": 96').replace("[32, 64, 128, 256],", "[96],")
    made = children("gemm_bias_gelu", GEMM, tuned)
    values = {(read_knobs(source).default["BLOCK_M"], read_knobs(source).default["BLOCK_N"]) for source in made}
    assert {(64, 128), (128, 96)} <= values
    assert all(96 in read_knobs(source).space["BLOCK_N"] for source in made if read_knobs(source).default["BLOCK_N"] == 96)


def test_a_kernel_with_the_same_parameters_moves_with_the_function_it_calls():
    changed = (
        GEMM.replace("def gelu(x)", "def quick_gelu(x)").replace("y = gelu(", "y = quick_gelu(").replace("2.0 * u", "1.702 * x")
    )
    changed = changed.replace('"BLOCK_M": 128', '"BLOCK_M": 64')
    made = [source for source, strategy in children("gemm_bias_gelu", GEMM, changed).items() if strategy.startswith("kernel")]
    assert made
    tree = ast.parse(made[0])
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {"gelu", "quick_gelu", "gemm_bias_gelu_kernel", "gemm_bias_gelu"} <= names
    assert read_knobs(made[0]).default["BLOCK_M"] == 128


def test_an_entry_brings_its_kernel_and_its_knobs():
    blocks = outcome(OnlineBlocks(), "softmax", SOFTMAX).source + "\n\ndef unrelated():\n    return 1\n"
    rows = outcome(RowsPerProgram(), "softmax", SOFTMAX).source
    for source in children("softmax", rows, blocks) | children("softmax", blocks, rows):
        read = {
            node.slice.value
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "CONFIG"
        }
        assert read <= set(read_knobs(source).default)
    made = [source for source, strategy in children("softmax", blocks, rows).items() if strategy.startswith("softmax of")]
    assert made
    assert "def unrelated" in made[0]
    assert "row_mask" in made[0]


def test_children_differ_from_both_parents_and_equal_parents_have_none():
    even = outcome(EliminateMasks(), "softmax", SOFTMAX).source
    made = children("softmax", SOFTMAX, even)
    meanings = {ast.dump(ast.parse(source)) for source in (SOFTMAX, even)}
    assert not meanings & {ast.dump(ast.parse(source)) for source in made}
    same = outcome(ExchangeParts(), "softmax", SOFTMAX, SOFTMAX + "# a comment\n")
    assert isinstance(same, NoProposal)
    assert not same.failed
