"""Seeds of torch.compile, the whole way without a GPU: reference, generated code, our module, plan, binaries, interpreted and judged."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from evo.commands.seeding import with_seeds
from evo.config import RunConfig
from evo.evaluation.base import WorkItem
from evo.evaluation.interpreter import InterpretedTier
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.tier import Candidate, Checked
from evo.knobs import read_knobs
from evo.records import Failure, Status, Variant
from evo.registry import evaluator_factory
from evo.seeding.seeds import CompilerSeed, compiler_seeds
from evo.seeding.warm import kept_warm, warm_process
from evo.tasks.base import Task
from evo.tasks.draws import Draw, Variation
from evo.tasks.loading import load_task
from evo.tracing.workbench import Job, Prepared, Workbench

HEAD = """
import torch
import torch.nn.functional as F
from evo.tasks.base import Case, Task, TensorSpec

def spec(*shape, dtype="float32"):
    return TensorSpec(shape, dtype)

def case(*arguments):
    name = "_".join("x".join(map(str, item.shape)) if isinstance(item, TensorSpec) else str(item) for item in arguments)
    return Case(name, arguments, 64, 64)

def task(reference, cases, **more):
    return Task(name="seeded", description="", entry="entry", reference=reference, training_cases=cases[:1], held_out_cases=cases[1:2],
                small_cases=cases[2:], starting_kernels=(), **more)
"""
TREE = """
def reference(x, w, k):
    y = torch.tanh(x) * w + k + torch.tensor(0.5, device=x.device)
    return {"y": y, "rest": (y.mean(-1, keepdim=True), None, x.amax(0))}

TASK = task(reference, [case(spec(64, 512), spec(512), 3), case(spec(33, 77), spec(77), 3), case(spec(3, 7), spec(7), 3)])
"""
IN_PLACE = """
def reference(x, y):
    x.mul_(2).add_(y)

TASK = task(reference, [case(spec(32, 64), spec(32, 64)), case(spec(9, 9), spec(9, 9)), case(spec(3, 7), spec(3, 7))], mutates=(0,))
"""
CONVOLUTIONS = """
def reference(x, w, b, v):
    return F.conv_transpose2d(F.relu(F.conv2d(x, w, b, stride=2, padding=1)), v, stride=2, groups=2)

def sized(n, h):
    return case(spec(n, 2, h, h + 1), spec(4, 2, 3, 3), spec(4), spec(4, 2, 2, 3))

TASK = task(reference, [sized(8, 32), sized(3, 17), sized(1, 5)])
"""
MODULE = """
PARAMETERS = {"line.weight": spec(24, 64), "line.bias": spec(24), "scale": spec(24)}

def reference(parameters, x):
    return F.layer_norm(F.linear(x, parameters["line.weight"], parameters["line.bias"]), (24,), parameters["scale"])

TASK = task(reference, [case(spec(128, 64)), case(spec(33, 64)), case(spec(3, 64))], form="module", parameters=PARAMETERS,
            allowed_operators=frozenset({"aten.mm", "aten.addmm"}))
"""


@pytest.fixture(scope="module")
def tier() -> Iterator[InterpretedTier]:
    bench = Workbench("cuda:90", workers=1)
    tier = InterpretedTier("cuda:90", workbench=bench)
    yield tier
    tier.close()
    bench.close()


def loaded(folder: Path, text: str) -> Task:
    path = folder / "seeded_task.py"
    path.write_text(HEAD + text, encoding="utf-8")
    return load_task(str(path))


def prove(tier: InterpretedTier, task: Task, seed: CompilerSeed) -> None:
    """Every case traced and compiled, the small ones judged."""
    assert not seed.failure
    assert "inductor" not in seed.source.lower(), "nothing of the compiler's runtime is left"
    assert tier.workbench is not None
    configuration = read_knobs(seed.source).default
    for case, made in zip(
        task.cases, tier.workbench.prepare([Job(seed.source, task, case, configuration) for case in task.cases]), strict=True
    ):
        assert isinstance(made, Prepared), made
        if case in task.small_cases:
            candidate = Candidate(seed.source, case, configuration, made.plan, made.binaries)
            verdict = tier.check(task, candidate, [Draw(1, Variation.PLAIN)])
            assert isinstance(verdict, Checked), verdict.message if isinstance(verdict, Failure) else ""
            assert verdict.error_ratio <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(TREE, id="nested outputs"),
        pytest.param(IN_PLACE, id="in place"),
        pytest.param(CONVOLUTIONS, id="convolutions", marks=pytest.mark.slow),
    ],
)
def test_a_seed_serves_all_cases_of_a_task(
    tier: InterpretedTier, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    task, scratch = loaded(tmp_path, text), tmp_path_factory.mktemp("scratch")
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(scratch))  # others may have folders in the machine's own
        (seed,) = compiler_seeds(task, "cuda:90")
    assert not list(scratch.glob("triton-evolve-inductor-*")), "something is left behind"
    prove(tier, task, seed)
    assert "_2(" not in seed.source.split("def entry", 1)[1].split("raise")[0], "one form, as sizes are symbols"


@pytest.mark.slow
def test_products_come_as_templates_and_where_the_task_allows_it_as_operators(tier: InterpretedTier, tmp_path: Path) -> None:
    task = loaded(tmp_path, MODULE)
    triton, extern = compiler_seeds(task, "cuda:90")
    prove(tier, task, triton)
    prove(tier, task, extern)
    assert "tl.dot(" in triton.source
    assert "torch.mm" not in triton.source
    assert {"BLOCK_M", "BLOCK_N", "BLOCK_K"} <= set(read_knobs(triton.source).space)
    assert set(extern.operators) & {"aten.mm", "aten.addmm"}


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("def reference(x):\n    return x * float(x.sum())", "without values"),
        ("def reference(x):\n    return torch.linalg.svd(x)[1] * x.sum()", "aten."),
    ],
    ids=["reads a value", "no lowering"],
)
def test_what_cannot_be_a_seed_is_one_line(tmp_path: Path, reference: str, said: str) -> None:
    task = loaded(tmp_path, reference + "\n\nTASK = task(reference, [case(spec(8, 8)), case(spec(9, 9)), case(spec(3, 3))])\n")
    (seed,) = compiler_seeds(task, "cuda:90")
    assert not seed.source
    assert said in seed.failure
    assert "\n" not in seed.failure


def test_a_reference_that_hangs_costs_its_deadline_alone(tmp_path: Path) -> None:
    text = "def reference(x):\n    while isinstance(x.shape[0], torch.SymInt):\n        pass\n    return x + 1\n\n"
    task = loaded(tmp_path, text + "TASK = task(reference, [case(spec(8, 8)), case(spec(9, 9)), case(spec(3, 3))])\n")
    (seed,) = compiler_seeds(task, "cuda:90", deadline_s=1.0)
    assert seed.failure == "Inductor took more than 1 s"


def test_processes_are_kept_warm_for_as_long_as_somebody_asks() -> None:
    environment = {"PATH": "", "PYTHONPATH": ""}
    with kept_warm():
        with warm_process(environment) as first, warm_process(environment) as second:
            assert first is not second, "two who ask at once wait for nobody"
        with warm_process(environment) as again:
            assert again in (first, second)
        assert [first.lives, second.lives] == [True, True]
    assert [first.lives, second.lives] == [False, False]
    with warm_process(environment) as alone:
        pass
    assert not alone.lives


def test_a_run_records_the_seeds_of_tasks_without_a_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded(tmp_path, IN_PLACE)
    config = with_seeds(RunConfig(name="run", tasks=(str(tmp_path / "seeded_task.py"), "softmax")))
    assert list(config.seeds) == ["seeded"], "softmax has a kernel to start from"
    assert "starts from what torch.compile makes" in capsys.readouterr().out
    assert RunConfig.from_text(config.to_text(), "text").seeds == config.seeds
    from evo.cluster.setup import task_setups

    setups = {setup.task.name: setup for setup in task_setups(config)}
    assert [variant.source for variant in setups["seeded"].starts] == list(config.seeds["seeded"])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["softmax", "gemm_bias_gelu", "rms_norm"])
def test_a_seed_passes_and_is_measured_on_a_gpu(name: str) -> None:
    task = load_task(name)
    evaluator = evaluator_factory("kernels")({name: task}, EvaluationSettings(tune_trials=8, start_tune_trials=8), "gpu")
    try:
        (seed,) = compiler_seeds(task, "cuda:90")
        assert not seed.failure
        verdict = evaluator.evaluate(WorkItem(1, Variant(name, seed.source), None), lambda plan_hash, variant_id: None)
        assert verdict.status is Status.PASSED, verdict.message
    finally:
        evaluator.close()
