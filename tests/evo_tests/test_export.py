"""An export runs without this project, launches what was judged, keeps other inputs from kernels, and its test notices sabotage."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from exported_store import H200, ONLINE_SOFTMAX, Judge, lineage, write_store

from evo.records import Evaluation, TrustLevel, Variant
from evo.reporting.export import ExportReport, export_front
from evo.tasks.base import Task
from evo.tasks.loading import load_task, starting_sources
from population_store.base import PopulationStore

SHORT_SOFTMAX = """
import torch
from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.softmax import TASK as WHOLE

DIM = -1


def softmax(x):
    return torch.softmax(x, dim=DIM)


def case(rows, columns):
    spec = TensorSpec((rows, columns), "float32")
    return Case(f"{rows}x{columns}", (spec,), bytes=2 * spec.nbytes, flops=5 * spec.numel)


TASK = Task(
    name="short_softmax", description="Row-wise softmax.", entry="softmax", reference=softmax,
    training_cases=(case(64, 512), case(8, 6000)), held_out_cases=(case(1, 700),), small_cases=(case(3, 70),),
    starting_kernels=(%r,),
)
"""


def run_python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs Python where this project cannot be imported."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment, "TRITON_INTERPRET": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    made = Judge()
    yield made
    made.close()


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    path = tmp_path_factory.mktemp("tasks") / "short_softmax.py"
    path.write_text(SHORT_SOFTMAX % starting_sources(load_task("softmax"))[0])
    return load_task(str(path))


@pytest.fixture(scope="module")
def store(task: Task, judge: Judge, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PopulationStore]:
    """A start that is fast on one case and a child that is fast on the other; a third child whose recorded plan is not its own; a
    fourth, the fastest, that was never verified."""
    start = starting_sources(task)[0]
    parent = Variant(task.name, start).variant_id
    judged = judge.passed(task, start, [9.0, 30.0], [{"num_warps": 1}, {"num_warps": 16}], error=0.2, verify=True, how=H200)
    online = judge.passed(
        task, ONLINE_SOFTMAX, [20.0, 9.0], [{"BLOCK": 256}, {"BLOCK": 4096, "num_warps": 8}], verify=True, how=H200
    )
    searched = judge.passed(task, ONLINE_SOFTMAX, [20.0, 9.0], [{}, {}], how=H200)
    other = start.replace("tl.sum(numerator, axis=0)", "(tl.sum(numerator, axis=0) + 1.0)")
    false = judge.passed(task, start, [1.0, 1.0], [{}, {}], error=0.6, verify=True, how=H200)
    unverified = start + "\n# only searched\n"
    quick = judge.passed(task, unverified, [0.5, 0.5], [{}, {}], error=0.1, how=H200)
    entries = [
        *lineage(0, task.name, start, judged, strategy="start", verify=judged),
        *lineage(1, task.name, ONLINE_SOFTMAX, searched, (parent,), strategy="two passes\nimport os", verify=online),
        *lineage(
            2, task.name, other, _renamed(false, task, other), (parent,), strategy="add", verify=_renamed(false, task, other)
        ),
        *lineage(3, task.name, unverified, quick, (parent,), strategy="comment"),
    ]
    opened = write_store(tmp_path_factory.mktemp("store") / "store.sqlite", [task], entries)
    yield opened
    opened.close()


def _renamed(evaluation: Evaluation, task: Task, source: str) -> Evaluation:
    return dataclasses.replace(evaluation, variant_id=Variant(task.name, source).variant_id)


@pytest.fixture(scope="module")
def report(store: PopulationStore, tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    return export_front(store, tmp_path_factory.mktemp("out") / "front")


@pytest.fixture
def copy(report: ExportReport, tmp_path: Path) -> Path:
    """A copy of the export to spoil."""
    return Path(shutil.copytree(report.out, tmp_path / "front"))


def kernel_data(report: ExportReport, index: int) -> Any:
    return json.loads(report.tasks[0].kernels[index].with_suffix(".json").read_text())


def test_what_was_never_verified_is_left_out_where_others_were(report: ExportReport, task: Task) -> None:
    (exported,) = report.tasks
    assert all("only searched" not in path.read_text() for path in exported.kernels)


def test_a_kernel_that_launches_something_else_than_was_judged_is_left_out(report: ExportReport, task: Task) -> None:
    (exported,) = report.tasks
    assert [path.name.split("_")[1] for path in exported.kernels] == ["1", "2"]
    ((_, reason),) = exported.refused
    assert "launches something else" in reason
    assert list(report) == [*exported.kernels, report.out / "test_front.py"]


def test_provenance_is_in_the_header_and_in_the_json(report: ExportReport) -> None:
    text, data = report.tasks[0].kernels[0].read_text(), kernel_data(report, 0)
    assert text.startswith("# Kernel 1 of the Pareto front of task short_softmax")
    assert "measured on NVIDIA H200, 128 pairs" in text
    assert "Trust level: replayed. Verified in a fresh process." in text
    assert re.search(r"^import os", text, re.MULTILINE) is None  # what a model wrote stays a comment
    assert data["descent"][1]["strategy"] == "two passes\nimport os"
    assert [step["operator"] for step in data["descent"]] == ["start", "llm_mutation"]
    assert data["run"]["seed"] == 7
    assert data["cases"][0]["latency"] == "measured on NVIDIA H200, 128 pairs"
    assert data["cases"][1]["configuration"] == {"BLOCK": 4096, "num_warps": 8}
    assert data["launches"]["8x6000"]["launches"][0]["options"]["num_warps"] == 8
    assert data["launches"]["64x512"]["launches"][0]["grid"] == [64, 1, 1]


def test_a_module_alone_has_a_tuned_configuration(report: ExportReport) -> None:
    namespace: dict[str, object] = {}
    text = report.tasks[0].kernels[0].read_text()
    exec("\n".join(re.findall(r"^(?:CONFIG|SPACE|TUNED_CONFIGURATIONS) = .*?[}\]]$", text, re.MULTILINE | re.DOTALL)), namespace)
    tuned = namespace["TUNED_CONFIGURATIONS"]
    assert namespace["CONFIG"] == {"BLOCK": 256, "num_warps": 4}
    assert tuned == {"64x512": {"BLOCK": 256, "num_warps": 4}, "8x6000": {"BLOCK": 4096, "num_warps": 8}}


USE = """
import json, sys, threading
import torch
assert "evo" not in sys.modules and not any(name.startswith(("evo.", "population_store")) for name in sys.modules)
import short_softmax as front

x = torch.randn(9, 600)
wide = torch.randn(8, 6000)
results = [torch.allclose(front.apply(item), torch.softmax(item, -1), atol=1e-6) for item in (x, wide)]
given = {
    "tall": x, "wide": wide, "half": x.half(), "transposed": torch.randn(600, 9).T, "short": torch.randn(9, 500),
    "long": torch.randn(65, 600), "misaligned": torch.randn(9 * 600 + 1)[1:].view(9, 600), "gradient": torch.randn(9, 600).requires_grad_(),
    "vector": x[0], "parameter": torch.nn.Parameter(x, requires_grad=False),
}
chosen = {name: front.explain(item) for name, item in given.items()}
for name, item in given.items():
    results.append(torch.allclose(front.apply(item).float(), torch.softmax(item.float(), -1), atol=1e-3))
answer = chosen["tall"]
loaded = []
threads = [threading.Thread(target=lambda: loaded.append(front.load(answer["kernel"], answer["configuration"]))) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
first, second = (front.load(chosen[name]["kernel"], chosen[name]["configuration"]).CONFIG for name in ("tall", "wide"))
print(json.dumps({"results": results, "chosen": chosen, "modules": len(set(map(id, loaded))), "configs": [first, second]}))
"""


def test_apply_uses_kernels_within_the_guards_alone_and_needs_none_of_this_project(report: ExportReport) -> None:
    done = run_python("-c", USE, folder=report.out)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    chosen = answer["chosen"]
    kernels = {name: item["kernel"] for name, item in chosen.items() if item["kernel"]}
    fast_when_tall, fast_when_wide = report.tasks[0].kernels[1].stem, report.tasks[0].kernels[0].stem
    assert kernels == {"tall": fast_when_tall, "wide": fast_when_wide, "parameter": fast_when_tall}
    assert all(answer["results"])
    assert answer["modules"] == 1
    assert answer["configs"] == [{"num_warps": 1}, {"BLOCK": 4096, "num_warps": 8}]
    assert "size 500 in dimension 1; judged from 512 to 6000" in chosen["short"]["reason"]
    assert "16" in chosen["misaligned"]["reason"]
    assert "gradients" in chosen["gradient"]["reason"]


def test_its_own_test_passes_as_exported(report: ExportReport) -> None:
    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_front.py", folder=report.out)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_its_own_test_fails_on_a_wrong_kernel_and_on_swapped_configurations(report: ExportReport, copy: Path) -> None:
    package = copy / "short_softmax"
    wrong, swapped = (package / path.name for path in report.tasks[0].kernels)
    wrong.write_text(wrong.read_text().replace("tl.exp(x - high) / total", "tl.exp(x - high) / (total + 1e-3)"))
    data = json.loads(swapped.with_suffix(".json").read_text())
    launches = data["launches"]
    launches["3x70"]["configuration"] = launches["8x6000"]["configuration"]
    swapped.with_suffix(".json").write_text(json.dumps(data))
    dispatcher = (package / "__init__.py").read_text()
    (package / "__init__.py").write_text(dispatcher.replace('"BLOCK": 4096', '"BLOCK": 1024'))
    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_front.py", folder=copy)
    failed = set(re.findall(r"^FAILED \S+::(\S+)", done.stdout, re.MULTILINE))
    assert done.returncode == 1
    assert failed == {
        f"test_kernel_is_exact_and_leaves_inputs_alone[short_softmax-3x70-{wrong.stem}]",
        f"test_what_launches_is_what_was_judged[short_softmax-3x70-{swapped.stem}]",
        "test_judged_cases_go_to_a_kernel_as_it_was_judged[short_softmax-8x6000]",
        "test_judged_cases_go_to_a_kernel_as_it_was_judged[short_softmax-1x700]",  # nearest in shape to 8x6000
    }, done.stdout


def test_its_own_test_notices_a_kernel_that_does_something_else_later_and_one_that_lets_torch_compute(
    report: ExportReport, copy: Path
) -> None:
    later, computing = (copy / "short_softmax" / path.name for path in report.tasks[0].kernels)
    counting = "    _count.append(1)\n    if len(_count) > 2:\n        return torch.empty_like(x)\n    y = torch.empty_like(x)\n"
    text = later.read_text().replace("    y = torch.empty_like(x)\n", counting)
    later.write_text(text.replace("def softmax(x):", "_count = []\n\n\ndef softmax(x):"))
    computing.write_text(re.sub(r"^    return (\w+)$", r"    return \1 + 0.0", computing.read_text(), flags=re.MULTILINE))
    selected = ("-k", "test_what_launches_is_what_was_judged")
    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", *selected, "test_front.py", folder=copy)
    assert done.returncode == 1
    assert "0 launches; judged with 1" in done.stdout
    assert "torch computes aten.add" in done.stdout


@pytest.mark.slow
def test_a_hosted_kernel_is_exported_and_marked(task: Task, judge: Judge, tmp_path: Path) -> None:
    source = ONLINE_SOFTMAX.replace("    return y\n", "    x.view(-1)[0].item()\n    return y\n")
    judged = judge.passed(
        task, ONLINE_SOFTMAX, [20.0, 9.0], [{"BLOCK": 256}, {"BLOCK": 4096, "num_warps": 8}], verify=True, how=H200
    )
    verdict = dataclasses.replace(_renamed(judged, task, source), trust=TrustLevel.HOSTED)
    store = write_store(
        tmp_path / "store.sqlite", [task], lineage(0, task.name, source, verdict, strategy="start", verify=verdict)
    )
    report = export_front(store, tmp_path / "front")
    store.close()
    text, data = report.tasks[0].kernels[0].read_text(), kernel_data(report, 0)
    assert "Trust level: hosted." in text
    assert "latencies are of calls" in " ".join(text.replace("# ", "").split())
    assert data["trust"] == "hosted"
    assert data["launches"]["64x512"] == {
        "configuration": {"BLOCK": 256, "num_warps": 4}, "plan_hash": None, "triton": None, "target": None, "launches": None,
    }  # fmt: skip
    done = run_python("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_front.py", folder=report.out)
    assert done.returncode == 0, done.stdout
    assert "a hosted kernel: what it launches depends on the values" in done.stdout


@pytest.mark.slow
def test_an_earlier_export_is_replaced_whole(store: PopulationStore, copy: Path) -> None:
    (copy / "short_softmax" / "kernel_9_gone.py").write_text("")
    again = export_front(store, copy, task="short_softmax")
    assert {path.name for path in copy.glob("short_softmax/kernel_*.py")} == {path.name for path in again.tasks[0].kernels}
    assert [path.name for path in copy.parent.iterdir()] == ["front"]  # nothing is left of the way there
