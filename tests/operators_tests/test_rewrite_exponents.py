"""Exponentials become powers of two: folded where a scalar scales every exponent, plain elsewhere, and right in both forms."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evo.records import NoProposal, Variant
from operators.base import Context, Parent
from operators.rewrite.base_two import BaseTwoExponent

HERE = Path(__file__).parent
STARTS = HERE.parents[1] / "evo" / "tasks" / "starts"
CONTEXT = Context("task", "", "entry", "", frozenset(), "cuda:90", "3.9")
LOG2_E = "1.4426950408889634"
FACTOR = f" * {LOG2_E}"

SOFTMAX, SWIGLU, GELU, ATTENTION = (
    (STARTS / f"{name}.py").read_text() for name in ("softmax", "swiglu", "gemm_bias_gelu", "attention")
)
LOG_SOFTMAX = (HERE / "kernels" / "log_softmax.py").read_text()
SWIGLU_EXP = SWIGLU.replace("gate * tl.sigmoid(gate) * up", "gate / (1.0 + tl.exp(-gate)) * up")
GELU_EXP = GELU.replace("x * tl.sigmoid(2.0 * u)", "x / (1.0 + tl.exp(-2.0 * u))")

# The last keys come first, so that whole blocks are masked while the running maximum is still -inf.
BACKWARDS = (
    ATTENTION.replace("range(0, first + BLOCK_M, BLOCK_N)", "range(0, length, BLOCK_N)")
    .replace("columns = start +", "columns = (tl.cdiv(length, BLOCK_N) - 1) * BLOCK_N - start +")
    .replace("shrink =", 'shift = tl.where(new_highest == float("-inf"), 0.0, new_highest)\n        shrink =')
    .replace("highest - new_highest)", "highest - shift)")
    .replace("scores - new_highest[:, None]", "scores - shift[:, None]")
)
UNSCALED = (
    ATTENTION.replace("tl.trans(k)) * scale", "tl.trans(k))")
    .replace("tl.exp(highest - new_highest)", "tl.exp(scale * (highest - new_highest))")
    .replace("tl.exp(scores - new_highest[:, None])", "tl.exp((scores - new_highest[:, None]) * scale)")
)
SENTINEL = ATTENTION.replace('scores, float("-inf"))', "scores, -1.0e9)")
STORED = ATTENTION.replace("    y = accumulator", "    tl.store(y_ptr + rows, highest)\n    y = accumulator")
CAST = ATTENTION.replace("tl.trans(k)) * scale", "tl.trans(k)) * scale).to(tl.float32)").replace("= tl.dot(q,", "= (tl.dot(q,")
LOGARITHM = ATTENTION.replace("    y = accumulator", "    entropy = highest + tl.log(total)\n    y = accumulator")
TWICE = ATTENTION.replace("weights = tl.exp(", "half = scores * 0.5\n        weights = tl.exp(")


def outcome(source):
    return asyncio.run(BaseTwoExponent().propose((Parent(Variant("task", source)),), CONTEXT, np.random.default_rng(0)))


def run(script, jobs):
    command = [sys.executable, str(HERE / "interpreted" / script)]
    done = subprocess.run(command, input=json.dumps(jobs), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("source", [ATTENTION, BACKWARDS], ids=["forwards", "backwards"])
def test_attention_takes_the_factor_into_its_scale(source):
    after = outcome(source).source
    assert f"tl.dot(q, tl.trans(k)) * (scale{FACTOR})" in after
    assert after.count(LOG2_E) == 1
    assert after.count("tl.exp2(") == 2
    assert "tl.exp(" not in after


def test_a_scale_inside_each_exponent_takes_the_factor_there():
    after = outcome(UNSCALED).source
    assert f"tl.exp2((scale{FACTOR}) * (highest - new_highest))" in after
    assert f"tl.exp2((scores - new_highest[:, None]) * (scale{FACTOR}))" in after


def test_a_literal_scale_takes_the_factor_too():
    assert f"tl.exp2((-2.0{FACTOR}) * u)" in outcome(GELU_EXP).source


def test_without_a_scale_the_exponent_is_multiplied():
    assert f"tl.exp2((x - tl.max(x, axis=0)){FACTOR})" in outcome(SOFTMAX).source
    assert f"tl.exp2(-gate{FACTOR})" in outcome(SWIGLU_EXP).source


@pytest.mark.parametrize(
    "source",
    [SENTINEL, STORED, CAST, LOGARITHM, TWICE],
    ids=["finite mask", "maximum stored", "cast", "logarithm", "scores used elsewhere"],
)
def test_where_the_unit_would_show_the_plain_form_is_used(source):
    after = outcome(source).source
    assert f"tl.exp2((highest - new_highest){FACTOR})" in after
    assert f"tl.exp2((scores - new_highest[:, None]){FACTOR})" in after
    assert f"scale{FACTOR}" not in after


def test_parameters_of_called_functions_may_be_tensors_and_take_no_factor():
    after = outcome(GELU_EXP.replace("tl.exp(-2.0 * u)", "tl.exp(u * x)")).source
    assert f"tl.exp2(u * x{FACTOR})" in after


@pytest.mark.parametrize("source", [GELU, SWIGLU, SOFTMAX.replace("tl.exp(", "tl.exp2(")], ids=["gelu", "swiglu", "base two"])
def test_without_natural_exponentials_there_is_nothing_to_do(source):
    result = outcome(source)
    assert isinstance(result, NoProposal)
    assert "no kernel calls tl.exp" in result.reason


def test_nothing_is_left_after_one_rewrite():
    assert isinstance(outcome(outcome(ATTENTION).source), NoProposal)


def test_results_stay_within_rounding_also_behind_whole_masked_blocks():
    small = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "BLOCK": 16}
    jobs = [
        {"kernel": kernel, "entry": entry, "original": source, "rewritten": outcome(source).source, "config": small}
        for kernel, entry, source in (
            *(("attention", "attention", source) for source in (ATTENTION, BACKWARDS, UNSCALED, SENTINEL, LOGARITHM)),
            ("softmax", "softmax", SOFTMAX),
            ("log_softmax", "entry", LOG_SOFTMAX),
            ("swiglu", "swiglu", SWIGLU_EXP),
            ("gemm_bias_gelu", "gemm_bias_gelu", GELU_EXP),
        )
    ]
    for item, verdicts in zip(jobs, run("run_modules.py", jobs), strict=True):
        for verdict in verdicts:
            where = f"{item['rewritten']}\n{verdict}"
            assert "failure" not in verdict, where + verdict["failure"]
            assert verdict["error"] <= 2 * verdict["expected_error"] + 2e-6, where  # nan fails too


def test_both_forms_compile_for_a_gpu_without_one():
    folded = outcome(ATTENTION.replace("q_ptr", "query_ptr")).source
    children = [folded, *(outcome(source).source for source in (SOFTMAX, LOG_SOFTMAX, SWIGLU_EXP))]
    for child, stages in zip(children, run("compile_modules.py", children), strict=True):
        assert stages.get("cubin", 0) > 0, f"{stages}\n{child}"
