"""The comparison with KernelBench's evaluator: one source in both forms, the protocol with its process, the table, an interpreted run."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import kernelbench_side_by_side as script
from experiments.kernelbench.asking import Late, Theirs
from experiments.kernelbench.candidates import CANDIDATES, SMALL, as_model
from experiments.kernelbench.page import side_by_side_page, side_by_side_text

PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


batch_size = 64
dim = 64


def get_inputs():
    return [torch.rand(batch_size, dim)]


def get_init_inputs():
    return []
"""

EVALUATION = '''
import torch
from dotenv import load_dotenv
from openai import OpenAI


class Result:
    def __init__(self, correctness):
        self.compiled, self.correctness, self.runtime, self.ref_runtime, self.metadata = True, correctness, 0.25, 1.0, {"trials": 5}


def eval_kernel_against_ref(original, custom_model_src, *, num_correct_trials, num_perf_trials, backend, **more):
    """Talks, and believes whatever defines ModelNew."""
    print("a noisy evaluator", num_correct_trials, num_perf_trials, backend)
    if "patched" in custom_model_src.lower():
        raise RuntimeError("something of theirs broke")
    return Result("class ModelNew" in custom_model_src and num_correct_trials == 5 and num_perf_trials == 100)
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout in the suite's layout, with a problem and an evaluator of our own."""
    package, level = tmp_path / "kb" / "src" / "kernelbench", tmp_path / "kb" / "KernelBench" / "level1"
    package.mkdir(parents=True)
    level.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "eval.py").write_text(EVALUATION)
    (level / "88_NewGelu.py").write_text(PROBLEM)
    return tmp_path / "kb"


def test_every_candidate_is_one_edit_of_a_right_kernel_and_parses() -> None:
    for candidate in CANDIDATES:
        names = {node.name for node in ast.parse(candidate.source).body if isinstance(node, ast.FunctionDef)}
        assert "forward" in names, candidate.name
        assert candidate.right or candidate.why != "right"
    assert {candidate.problem for candidate in CANDIDATES if candidate.right} == set(SMALL)
    assert len({(candidate.problem, candidate.name) for candidate in CANDIDATES}) == len(CANDIDATES)


def test_an_edit_that_matches_nothing_is_an_error() -> None:
    broken = CANDIDATES[0].__class__(23, "broken", "softmax", (("no such text", "x"),))
    with pytest.raises(ValueError, match="no such text"):
        _ = broken.source


def test_the_model_form_computes_what_the_function_form_computes(root: Path, tmp_path: Path) -> None:
    """In Triton's interpreter, in a process of its own, for Triton reads the switch when it is imported."""
    path = root / "KernelBench" / "level1" / "88_NewGelu.py"
    right = next(candidate for candidate in CANDIDATES if candidate.problem == 88 and candidate.right)
    (tmp_path / "model.py").write_text(as_model(right.source, path))
    code = "import torch, model; x = torch.rand(5, 7); y = model.ModelNew()(x); z = model._problem.Model()(x)\n"
    code += "assert torch.equal(y, model.forward(x)) and torch.allclose(y, z, rtol=1e-6), (y, z)"
    environment = {"TRITON_INTERPRET": "1", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_their_process_answers_in_spite_of_noise_and_failures(root: Path, tmp_path: Path) -> None:
    path = root / "KernelBench" / "level1" / "88_NewGelu.py"
    with Theirs(root, tmp_path / "log", deadline_s=120) as theirs:
        assert set(theirs.ready["stand_ins"]) <= {"dotenv", "tqdm", "openai", "litellm", "requests"}
        good = theirs.evaluate(path, "class ModelNew: ...", deadline_s=60)
        assert (good["correct"], good["runtime_us"], good["reference_us"]) == (True, 250.0, 1000.0)
        assert theirs.evaluate(path, "nothing", deadline_s=60)["correct"] is False
        assert "something of theirs broke" in theirs.evaluate(path, "class ModelNew: 'patched'", deadline_s=60)["not_run"]
    assert "a noisy evaluator 5 100 triton" in (tmp_path / "log").read_text()


def test_a_process_that_does_not_come_up_is_late(tmp_path: Path) -> None:
    with pytest.raises(Late, match="ended"):
        Theirs(tmp_path / "nowhere", tmp_path / "log", deadline_s=120)


def row(name: str, right: bool, ours: str, theirs: bool | None) -> dict[str, object]:
    judged = (
        {"seconds": 30.0, "compiled": True, "correct": theirs, "runtime_us": 100.0} if theirs is not None else {"not_run": "late"}
    )
    mine = {
        "status": ours,
        "stage": "gate",
        "message": "at | once",
        "seconds": 0.5,
        "latency_us": 90.0 if ours == "passed" else None,
    }
    return {"problem": 1, "candidate": name, "right": right, "why": "because", "ours": mine, "theirs": judged}


def test_verdicts_are_compared_with_what_a_candidate_is() -> None:
    rows = [
        row("right", True, "passed", True),
        row("wrong", False, "wrong_values", False),
        row("cheat", False, "rejected", True),
        row("missed", False, "passed", True),
        row("alarm", True, "rejected", True),
        row("late", True, "passed", None),
    ]
    verdicts = [script.verdict(item) for item in rows]
    assert verdicts == ["same", "same", "ours is right: because", "same, both wrong: because", "OURS IS WRONG: because", "–"]
    found = script.summary(rows)
    assert (found["same"], found["ours_right"], found["ours_wrong"], found["judged_by_both"]) == (2, 1, 2, 5)
    assert found["median_ratio"] == 60.0
    problems = {1: {"title": "1_x", "case": "3x3", "elements": 9, "our_setup_s": 1.0, "our_share_s": 0.25}}
    results = {
        "rows": [{**item, "verdict": verdict} for item, verdict in zip(rows, verdicts, strict=True)],
        "problems": problems, "setup": {"theirs": {"ready_s": 5.0}, "ours_ready_s": 9.0}, "summary": found,
    }  # fmt: skip
    page = side_by_side_page(results, "measured with care")
    assert "| 1 | cheat | passed | rejected | 30.0 | 0.50 | 60× | 100.0 | – | ours is right: because |" in page
    assert "| 1_x | 9.00e+00 | 1.0 | 0.25 | 30.0 | 120× |" in page
    assert "at \\| once" in page
    assert "median ratio 60×" in side_by_side_text(results)
    assert "Not run by theirs: late." in page


@pytest.mark.slow
def test_an_interpreted_run_writes_table_and_data(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    script.main(
        ["--kernelbench-root", str(root), "--problems", "88", "--device", "cpu:cuda:90", "--limit-s", "1", "--out", str(out),
         "--only-ours", "--commit", "abc1234"]
    )  # fmt: skip
    results = json.loads((out / "kernelbench_side_by_side.json").read_text())
    status = {item["candidate"]: item["ours"]["status"] for item in results["rows"]}
    assert status["right"] == "passed"
    assert status["shifted"] == "wrong_values"
    assert status["cached"] == "rejected"
    assert results["session"]["commit"] == "abc1234"
    assert "4 candidates; none was judged by both." in capsys.readouterr().out
