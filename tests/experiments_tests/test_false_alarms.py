"""Counting false alarms: which kernels are honest, what counts as an alarm, what becomes of a file in TritonBench's layout."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from evo.errors import TaskError
from evo.suites.tritonbench_files import SEPARATOR, read_file, suite_files
from evo.tasks.loading import load_task, starting_sources
from experiments import false_alarms as script
from experiments.suites.tritonbench_verdicts import count_verdicts, verdicts_page

KERNELS = """
import torch
import triton
import triton.language as tl


@triton.jit
def twice_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def twice(x, *, block=64, out=None):
    y = torch.empty_like(x) if out is None else out
    assert x.is_cuda and x.device.type == "cuda"
    twice_kernel[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), BLOCK=block)
    return y
"""
MORE = {
    "hosted": "def longest(x, lengths):\n    return twice(x[: int(lengths.max().item())])\n",
    "refused": "def summed(x):\n    return twice(x).sum()\n",
    "failed": "def typo(x):\n    twice_kernel[(1,)](x, x, 1, BLOCK=48)\n    return x\n",
}
TESTS = {
    "replayed": """
        def test_twice():
            torch.manual_seed(0)
            results = {}
            for size in (16, 100, 100):
                results[size] = twice(torch.randn(size, device="cuda"))
            x = torch.arange(6.0, device="cuda").view(2, 3).t()
            results["more"] = twice(x, block=32, out=torch.empty(3, 2, device="cuda"))
            twice_kernel[lambda meta: (triton.cdiv(6, meta["BLOCK"]),)](x, x, 6, BLOCK=16)
            assert float(results["more"].sum().cpu()) == 0.0
            return results


        import triton
        result_gold = test_twice()
        """,
    "hosted": "longest(torch.ones(8, device='cuda'), torch.tensor([3, 5], device='cuda'))",
    "refused": "summed(torch.randn(64, device='cuda'))",
    "failed": "typo(torch.randn(64, device='cuda'))",
    "unread": "twice(torch.zeros(8, device='cuda', dtype=torch.complex64))",
}


def write_suite(folder: Path) -> None:
    for name, test in TESTS.items():
        parts = [KERNELS, MORE.get(name, ""), SEPARATOR, "import torch", textwrap.dedent(test)]
        (folder / f"{name}.py").write_text("\n".join(parts) + "\n", encoding="utf-8")
    (folder / "module.py").write_text(f"import no_such_module\n{SEPARATOR}\nx = 1\n", encoding="utf-8")
    (folder / "no_line.py").write_text("x = 1\n", encoding="utf-8")
    (folder / "no_python.py").write_text(f"def (\n{SEPARATOR}\nx = 1\n", encoding="utf-8")


@pytest.mark.slow
def test_files_of_a_suite_get_the_verdict_that_is_theirs(tmp_path: Path) -> None:
    write_suite(tmp_path)
    results = count_verdicts(tmp_path, "cuda:90", 2, 200.0)
    rows = {row["file"].removesuffix(".py"): row for row in results["rows"]}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        **{name: name for name in TESTS},
        **dict.fromkeys(("module", "no_line", "no_python"), "failed"),
    }
    assert results["verdicts"] == {"replayed": 1, "hosted": 1, "refused": 1, "failed": 4, "unread": 1}
    # Two sizes (the third call repeats the second), a call with keywords on a transposed view, a launch by the test itself.
    assert rows["replayed"]["calls"] == {"replayed": 4}
    assert not rows["replayed"]["test_ended"]
    assert "aten.sum" in rows["refused"]["reasons"][0]["message"]
    assert "item()" in rows["hosted"]["reasons"][0]["message"]
    assert "no_such_module" in rows["module"]["reasons"][0]["message"]
    assert "complex64" in rows["unread"]["reasons"][0]["message"]
    assert "146" in rows["no_line"]["reasons"][0]["message"]
    page = verdicts_page(
        {"session": dict.fromkeys(("gpu", "driver", "torch", "triton", "python", "cores", "commit", "command"), "-"), **results}
    )
    assert "| hosted.py | hosted | 1 hosted |" in page
    assert "typo(x)" not in json.dumps(results)  # verdicts are facts; the suite's code stays where it is
    assert "tl.arange(0, BLOCK)" not in json.dumps(results)


def test_a_folder_without_files_and_a_file_without_a_line_are_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="TritonBench_G_v1"):
        suite_files(tmp_path)
    file = tmp_path / "two.py"
    file.write_text(f"x = 1\n{SEPARATOR}\n{SEPARATOR}\n", encoding="utf-8")
    with pytest.raises(TaskError, match="2 lines of 146"):
        read_file(file)


def test_honest_kernels_are_all_rewrites_and_samples_of_what_follows() -> None:
    task = load_task("softmax")
    kernels = script.honest_kernels(task, second=2, crossed=1, seed=0)
    kinds = [item.kind for item in kernels]
    assert kinds.count("start") == len(starting_sources(task))
    assert kinds.count("rewrite") >= 5
    assert kinds.count("rewrite of a rewrite") == 2
    assert kinds.count("crossover") <= 1
    assert len({item.source for item in kernels}) == len(kernels)
    assert {"rows_per_program", "widen_space"} <= {item.operator for item in kernels}
    assert kernels == script.honest_kernels(task, second=2, crossed=1, seed=0)


@pytest.mark.slow
def test_the_real_evaluator_passes_a_starting_kernel_and_says_what_it_had_no_time_for(tmp_path: Path) -> None:
    script.main(
        [
            "--own",
            "--device",
            "cpu",
            "--tasks",
            "softmax",
            "--second",
            "0",
            "--crossed",
            "0",
            "--limit-s",
            "0",
            "--out",
            str(tmp_path),
        ]
    )
    results = json.loads((tmp_path / "false_alarms.json").read_text(encoding="utf-8"))
    assert (results["kernels"], results["false_alarms"]) == (1, 0)
    assert results["not_evaluated"] >= 5
    assert results["verdicts"][0]["status"] == "passed"
    assert "cuda:90" in results["device"]
    page = (tmp_path / "false_alarms.md").read_text(encoding="utf-8")
    assert "1 kernels that are right by construction, 0 false alarms" in page
    assert "no GPU, interpreted" in page


def test_what_the_compiler_cannot_fit_is_no_alarm_and_wrong_values_are() -> None:
    verdicts = [
        script.Verdict("softmax", "rewrite", "whole_row", "one block", "id", status, "gate", message, 1.0, "source")
        for status, message in (("out_of_resources", "needs 300 kB"), ("wrong_values", "row 3 differs"), ("error", "GPU lost"))
    ]
    assert [verdict.alarm for verdict in verdicts] == [False, True, True]
