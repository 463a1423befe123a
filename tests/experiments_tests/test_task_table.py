"""Tasks beside compilers and libraries: library calls are judged like variants, and the table says what was timed and what was not."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from evo.tasks.loading import load_task
from experiments.libraries import known, torch_calls
from experiments.side_by_side.compiled import compile_ahead, compile_one
from experiments.side_by_side.page import of_task, summary_line, table

SESSION = {
    "gpu": "G", "driver": "1", "torch": "2", "triton": "3", "python": "3.12", "cores": 16,
    "libraries": {"torch": "2", "liger_kernel": "0.8"},
    "commit": "abc", "seed": 0, "ceiling": {"bandwidth": 4e12, "flops": 7e14}, "command": "python -m experiments.task_table",
}  # fmt: skip
ELSEWHERE = {"grouped_gemm", "layer_norm_backward", "dropout"}
"""Its CPU kernel takes wide rows only; its CPU kernel sums in 16 bits; its results are random."""


@pytest.mark.parametrize("name", sorted(set(torch_calls.CALLS) - ELSEWHERE))
def test_what_torch_offers_for_a_task_does_what_the_task_says(name: str) -> None:
    task = load_task(name)
    for case in task.small_cases[:2]:
        assert known.why_not(task, case, torch_calls.CALLS[name], "cpu") == ""


def test_a_library_that_does_something_else_is_told_why() -> None:
    task = load_task("softmax")
    case = task.small_cases[0]
    assert "wrong" in known.why_not(task, case, lambda x: torch.softmax(x, 0), "cpu")
    assert "TypeError" in known.why_not(task, case, lambda: None, "cpu")
    assert known.why_not(task, case, lambda x: torch.softmax(x.t().contiguous(), 0).t(), "cpu") == "", (
        "strides are its own affair"
    )


def test_every_library_call_is_for_a_task_there_is() -> None:
    for calls in known.LIBRARIES.values():
        for name in calls:
            assert load_task(name).name == name


def measured(case: str, latencies: dict[str, float], failed: dict[str, str] | None = None) -> dict[str, Any]:
    ratios = {side: [math.log(us / latencies["best"])] * 5 for side, us in latencies.items() if side != "best"}
    intervals = {
        side: dict.fromkeys(("point", "low", "high"), us / latencies["best"]) for side, us in latencies.items() if side != "best"
    }
    return {
        "case": case, "device_us": latencies, "call_us": latencies, "ratios": ratios, "intervals": intervals, "noise": 0.001,
        "failed": failed or {}, "roofline_share": 0.9,
    }  # fmt: skip


def test_the_library_is_the_fastest_one_whose_outputs_pass() -> None:
    cases = [measured("a", {"best": 10.0, "start": 12.0, "eager": 40.0, "torch": 20.0, "liger_kernel": 15.0}) for _ in range(2)]
    right = of_task(cases, {"torch": ["", ""], "liger_kernel": ["", ""]})
    assert (right["library"], right["wrong"]) == ("liger_kernel", "")
    assert right["over_best"]["liger_kernel"]["point"] == pytest.approx(1.5)
    one_wrong = of_task(cases, {"torch": ["", ""], "liger_kernel": ["", "output 0 has dtype bfloat16"]})
    assert one_wrong["library"] == "torch"
    all_wrong = of_task(cases, {"liger_kernel": ["", "output 0 has dtype bfloat16"]})
    assert (all_wrong["library"], all_wrong["wrong"]) == ("liger_kernel", "output 0 has dtype bfloat16")
    missing = [cases[0], measured("b", {"best": 10.0, "start": 12.0, "torch": 20.0})]
    assert set(of_task(missing, {"torch": ["", ""], "liger_kernel": [""]})["over_best"]) == {"start", "torch"}


def test_the_table_names_the_strongest_of_the_others_and_what_was_not_timed() -> None:
    whole = [measured("a", {"best": 10.0, "start": 12.0, "eager": 40.0, "compiled": 11.0, "liger_kernel": 10.5})]
    partly = [measured("b", {"best": 10.0, "start": 10.0, "torch": 9.0}, {"eager": "it waits", "compiled": "120 s"})]
    results = [
        {"task": "softmax", "cases": whole, **of_task(whole, {"liger_kernel": ["output 0 is wrong"]})},
        {"task": "grouped_gemm", "cases": partly, **of_task(partly, {"torch": [""]})},
        {"task": "alone", "cases": (alone := [measured("c", {"best": 1.0, "start": 2.0})]), **of_task(alone, {})},
    ]
    text = table(SESSION, results)
    assert (
        "| softmax, a | 12.0 (12) | 10.0 (10) | 40.0 (40) | 11.0 (11) | 10.5 (10) liger† | 1.200 (≥ 1.200) | 1.050 (≥ 1.050) |"
        in text
    )
    assert "| grouped_gemm, b | 10.0 (10) | 10.0 (10) | – | – | 9.0 (9) torch | 1.000 (≥ 1.000) | 0.900 (≥ 0.900) |" in text
    assert "* grouped_gemm: eager not timed: it waits" in text
    assert "* softmax: liger†: output 0 is wrong" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1, "every row has every column"
    assert summary_line(results[1]) == "grouped_gemm: start / best 1.000 (≥ 1.000), torch / best 0.900 (≥ 0.900)"


def test_a_compiler_that_fails_is_told_of_and_one_that_does_not_end_has_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(reference: Any, **_: Any) -> Any:
        def call(*arguments: Any) -> None:
            raise RuntimeError("no lowering")

        return call

    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setattr(torch, "compile", refuses)
    case = load_task("softmax").small_cases[0].name
    compile_one("softmax", [case], tmp_path / "softmax.json", "cpu")
    assert json.loads((tmp_path / "softmax.json").read_text()) == {case: "RuntimeError: no lowering"}
    assert compile_ahead({"softmax": [case]}, tmp_path, 1, 0.05) == {f"softmax {case}": "torch.compile took more than 0.05 s"}
