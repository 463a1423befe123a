"""Programs that stay and walk over the rows do every row once, with the same bits, and only where that is safe."""

import asyncio
import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evo.knobs import read_knobs
from evo.records import NoProposal, Variant
from operators.base import Context, Parent
from operators.rewrite.persistent_rows import PersistentRows
from operators.source import NotApplicableError, read_source

HERE = Path(__file__).parent
STARTS = HERE.parents[1] / "evo" / "tasks" / "starts"
CONTEXT = Context("task", "", "entry", "", frozenset(), "cuda:90", "3.9")


def read(name):
    path = HERE / "kernels" / f"{name}.py"
    return (path if path.exists() else STARTS / f"{name}.py").read_text()


def outcome(source):
    return asyncio.run(PersistentRows().propose((Parent(Variant("task", source)),), CONTEXT, np.random.default_rng(0)))


def children(source):
    """What the operator makes of each of its sites, by strategy."""
    made = {}
    for site in PersistentRows().sites(read_source(source)):
        with contextlib.suppress(NotApplicableError):
            made[site.strategy] = site.apply().code
    return made


def child(source, strategy=""):
    return next(text for name, text in children(source).items() if strategy in name)


def run(script, jobs):
    command = [sys.executable, str(HERE / "interpreted" / script)]
    done = subprocess.run(command, input=json.dumps(jobs), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def job(kernel, text, config):
    entry = kernel if (STARTS / f"{kernel}.py").exists() else "entry"
    return {"kernel": kernel, "entry": entry, "original": read(kernel), "rewritten": text, "config": config}


def check(jobs, same_bits):
    for item, verdicts, same in zip(jobs, run("run_modules.py", jobs), same_bits, strict=True):
        for verdict in verdicts:
            where = f"{item['kernel']} {item['config']}\n{item['rewritten']}\n{verdict}"
            assert "failure" not in verdict, where + verdict["failure"]
            assert verdict["error"] <= 2 * verdict["expected_error"] + 2e-6, where
            assert verdict["same_bits"] or not same, where


def test_programs_that_stay_compute_what_rows_share_before_their_loop():
    plain = child(read("rms_norm"))
    before, loop = plain.split(
        "    for row_index in tl.range(tl.program_id(0), n_rows, tl.num_programs(0), num_stages=STAGES):\n"
    )
    assert "mask = columns < hidden" in before
    assert "tl.load" not in before
    assert "row = tl.cast(row_index, tl.int64)\n" in loop
    assert 'rms_norm_kernel[(min(rows, CONFIG["PROGRAMS"]),)]' in loop
    assert read_knobs(plain).default["PROGRAMS"] == 528
    assert read_knobs(plain).space["STAGES"] == (1, 2, 3, 4)
    once = child(read("rms_norm"), "loading once")
    assert "weight = tl.load" in once.split("    for row_index")[0]
    assert once.split("    for row_index")[0].count("tl.load") == 1


def test_a_number_of_rows_the_kernel_has_is_not_passed_again():
    counted = (
        read("softmax")
        .replace("n_columns, BLOCK", "n_columns, height, BLOCK")
        .replace("(x, y, columns,", "(x, y, columns, rows,")
    )
    after = child(counted)
    assert "tl.range(tl.program_id(0), height, tl.num_programs(0), num_stages=STAGES)" in after
    assert "n_rows" not in after


def test_comments_at_the_program_id_stay_where_the_index_is_given():
    noted = read("add_relu").replace("    pid = tl.program_id(0)\n", "    # above\n    pid = tl.program_id(0)  # beside\n")
    after = child(noted)
    assert (
        "    # above\n    for pid in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), num_stages=STAGES):  # beside\n"
        in after
    )


def test_programs_that_stay_do_every_row_whether_they_are_more_or_fewer():
    # swiglu in five tiles or more, the product in up to six
    sizes = {"swiglu": {"BLOCK": 16}, "gemm_bias_gelu": {"BLOCK_M": 16, "BLOCK_N": 16, "GROUP_M": 2}}
    jobs = [
        job(kernel, text, sizes.get(kernel, {}) | {"PROGRAMS": programs})
        for kernel in ("softmax", "rms_norm", "quantize_rows", "swiglu", "gemm_bias_gelu")
        for text in children(read(kernel)).values()
        for programs in (1, 2, 5)
    ]
    assert len(jobs) == 18  # rms_norm also with its weight loaded once
    check(jobs, [item["kernel"] != "gemm_bias_gelu" for item in jobs])


def test_an_index_whose_methods_are_called_stays_a_tensor():
    wide = read("l2_normalise").replace("x_ptr + row * n", "x_ptr + row.to(tl.int64) * n")
    after = child(wide)
    assert "row = tl.cast(row_index, tl.int32)" in after
    check([job("l2_normalise", after, {"PROGRAMS": 2})], [True])


def test_kernels_that_change_their_arguments_or_return_early_do_so_for_each_row():
    jobs = [
        job("row_max", child(text), {"PROGRAMS": programs})
        for text in (read("row_max"), read("row_max").replace("    cols =", "    if row > n:\n        return\n    cols ="))
        for programs in (1, 2, 5)
    ]
    check(jobs, [True] * 6)


def test_a_grid_that_reads_its_tile_size_from_the_launch_is_counted_from_it():
    lazy = read("add_relu").replace("(triton.cdiv(n, 1024),)", 'lambda meta: (triton.cdiv(n, meta["BLOCK"]),)')
    after = child(lazy)
    assert 'lambda meta: (min(triton.cdiv(n, meta["BLOCK"]), CONFIG["PROGRAMS"]),)' in after
    assert "n_tiles=triton.cdiv(n, 1024)" in after
    small = after.replace("1024", "16")
    check([job("add_relu", text, {"PROGRAMS": programs}) for text in (after, small) for programs in (1, 3, 200)], [True] * 6)


def test_comments_and_other_functions_survive():
    extra = "\n\ndef untouched( a,b ):   # odd layout\n    return {  'a':a }\n"
    for kernel in ("layer_norm", "add_relu", "gemm_bias_gelu", "looped_norm"):
        source = read(kernel) + extra
        for after in children(source).values():
            assert extra in after
            for comment in [line[line.index("#") :] for line in source.splitlines() if "#" in line]:
                assert after.count(comment) == source.count(comment), f"{comment}\n{after}"


def test_loops_of_programs_compile_for_a_gpu_without_one():
    kernels = ("softmax", "rms_norm", "quantize_rows", "swiglu", "gemm_bias_gelu", "looped_norm")
    texts = [text for kernel in kernels for text in children(read(kernel)).values()]
    assert len(texts) == len(kernels) + 1  # rms_norm also with its weight loaded once
    for text, stages in zip(texts, run("compile_modules.py", texts), strict=True):
        assert stages.get("cubin", 0) > 0, f"{stages}\n{text}"


AGAIN = read("softmax").replace(
    "    numerator =", "    tl.store(y_ptr + row * n_columns + columns, x)\n    x = tl.load(y_ptr + columns)\n    numerator ="
)
LOCKED = read("softmax").replace("    numerator =", "    tl.atomic_cas(y_ptr, 0, 1)\n    numerator =")
NESTED = (
    read("softmax")
    .replace("row = tl.program_id(0)", "row = place()")
    .replace("\n\n@triton.jit", "\n\n@triton.jit\ndef place():\n    return tl.program_id(0)\n\n\n@triton.jit", 1)
)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (read("attention"), "several axes"),
        (read("scale_columns"), "several axes"),
        (AGAIN, "load what it stored"),
        (LOCKED, "wait for each other"),
        (NESTED, "returns a value"),
        (child(read("softmax")), "already walks"),
        (read("softmax").replace("[(rows,)]", "[(rows, 2)]"), "no tuple of one number"),
        (read("softmax").replace("[(rows,)]", "[(min(rows, 528),)]"), "limit already"),
        (read("softmax").replace("    mask =", "    a = 1; mask ="), "several statements"),
    ],
)
def test_programs_do_not_stay_where_that_is_not_safe(source, reason):
    result = outcome(source)
    assert isinstance(result, NoProposal), result.source
    assert not result.failed
    assert reason in result.reason
