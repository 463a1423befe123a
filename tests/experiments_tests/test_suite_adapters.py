"""Files of public suites' layouts become tasks: cases from what their scripts call, references, starting kernels; or a reason why not."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from evo.errors import TaskError
from evo.suites.base import CHECKOUT, Suite, Tools
from evo.suites.calls import chosen, composed
from evo.suites.jobs import RunFolder, selected
from evo.suites.preparing import Interpreted, Ready, interpreted, prepare
from evo.suites.recording import Recording
from evo.suites.registry import find_suite, suite_names
from evo.suites.triton_reference import BeyondItsTensors, with_arguments
from evo.suites.tritonbench_files import CallGroup
from evo.tasks.base import Task, TensorSpec
from evo.tasks.inputs import make_inputs
from evo.tasks.loading import load_task
from evo.tracing.workbench import Workbench

sys.path.insert(0, str(Path(__file__).parent))
import tiny_suites


@pytest.fixture(scope="module")
def tools() -> Iterator[Tools]:
    made = Tools(Recording("cuda:90"), Workbench("cuda:90", workers=1))
    yield made
    made.recording.close()
    made.bench.close()


def prepared(suite: Suite, root: Path, store: Path, title: str, tools: Tools) -> tuple[Ready, Task | None]:
    folder = RunFolder(store, suite, root)
    (problem,) = selected(suite.problems(root), title)
    ready = prepare(suite, root, problem, folder.of(problem), tools, "cuda:90")
    file = folder.of(problem) / "task.py"
    return ready, load_task(str(file), check=False) if ready.stage in ("ready", "started") else None


@pytest.mark.slow
def test_a_kernel_of_tritonbench_is_its_own_reference_at_the_sizes_of_its_scripts(tmp_path: Path, tools: Tools) -> None:
    root = tiny_suites.tritonbench(tmp_path / "checkout")
    ready, task = prepared(find_suite("tritonbench-g"), root, tmp_path / "run", "scale", tools)
    assert (ready.stage, ready.gpu_only, ready.starts) == ("ready", "", 1)
    assert task is not None
    assert task.description.startswith("Scale by a factor.")
    scored = [item for case in task.training_cases for item in case.arguments if isinstance(item, TensorSpec)]
    assert {item.shape for item in scored} <= {(2**power,) for power in range(12, 26, 3)}
    assert max(item.numel for item in scored) == 2**24
    ones = next(
        item for case in task.small_cases for item in case.arguments if isinstance(item, TensorSpec) and item.shape == (70,)
    )
    assert ones.distribution == "uniform", "a test's ones stand for any numbers"
    assert task.oracle == "reference"
    # One entry serves all forms of calls; what is no tensor is left out; the updated argument is an output.
    for case in task.small_cases:
        arguments = make_inputs(task, case, 0, "cpu").arguments
        x = next(item for item in arguments if isinstance(item, torch.Tensor))
        before = x.clone()
        returned = task.reference(*arguments)
        if returned is None:
            assert torch.equal(arguments[task.mutates[0]], 3.0 * before)
        else:
            assert returned[1] is None
            factor = next((item for item in arguments[2:] if isinstance(item, float)), 2.0)
            assert torch.equal(returned[0], before * factor)
    # A checkout that changed is another suite.
    (root / "data/TritonBench_G_v1/scale.py").write_text(tiny_suites.SCALE)
    assert (tmp_path / "run" / CHECKOUT).resolve() == root.resolve()
    with pytest.raises(TaskError, match="another file than the task was made of"):
        load_task(str(tmp_path / "run/problems/tritonbench_g_scale/task.py"), check=False)


def group(
    name: str, sizes: Sequence[int], script: str, *, extra: int = 0, backward: bool = False, odd: bool = False
) -> CallGroup:
    names = ", ".join(f"a{place}" for place in range(1 + extra))
    text = f"def suite_entry({names}):\n    return {name}({names})\n"
    calls = tuple((script, (TensorSpec((size,), "float32", requires_grad=backward), *range(extra))) for size in sizes)
    return CallGroup(name, text, "function", {}, backward, odd, calls)


def test_calls_of_several_forms_become_cases_of_one_entry() -> None:
    notes: list[str] = []
    groups = [
        group("one", [8, 4], "driver", odd=True),
        group("one", [1 << 20, 1 << 10, 1 << 31], "perf"),
        group("two", [16], "driver", extra=2),
    ]
    calls = composed([groups[0], groups[2], groups[1]], notes)
    picked = chosen(calls.calls)
    assert [call.elements for call in picked.training] == [1 << 10, 1 << 20], (
        "scored is what is measured; eight gigabytes are too many"
    )
    assert {call.form for call in picked.small} == {0, 1, 2}
    assert calls.case(picked.small[0], "it").arguments == (0, TensorSpec((4,), "float32"), None, None)
    module: dict[str, Any] = {"torch": torch, "one": lambda x: (x, 7), "two": lambda x, first, second: x + second}
    exec(calls.entry, module)
    x = torch.ones(2)
    assert module["suite_entry"](0, x, None, None) == (x, None), "what is no tensor is left out"
    assert torch.equal(module["suite_entry"](1, x, 0, 1), x + 1)


def test_gradients_are_left_out_and_modules_refused() -> None:
    notes: list[str] = []
    calls = composed([group("one", [8], "driver", backward=True)], notes)
    assert not any(isinstance(item, TensorSpec) and item.requires_grad for call in calls.calls for item in call.arguments)
    assert notes == ["of one the gradients are not judged, only what it returns"]
    module = dataclasses.replace(group("one", [8], "driver"), form="module")
    with pytest.raises(TaskError, match="a module with parameters of its own"):
        composed([module], notes)


def test_another_layout_is_refused_by_name_and_kept_from_being_looked_at_again(tmp_path: Path, tools: Tools) -> None:
    root = tiny_suites.tritonbench(tmp_path / "checkout")
    suite = find_suite("tritonbench-g")
    ready, _ = prepared(suite, root, tmp_path / "run", "other", tools)
    assert ready.stage == "read"
    assert "0 lines of 146 #" in ready.reason
    assert str(tmp_path) not in ready.reason
    (root / "data/TritonBench_G_v1/other.py").write_text("what is kept is not read again")
    assert prepared(suite, root, tmp_path / "run", "other", tools)[0] == ready
    with pytest.raises(TaskError, match="no such problem"):
        selected(suite.problems(root), "scal")
    with pytest.raises(TaskError, match="TritonBench_G_v1"):
        suite.problems(tmp_path)


def test_forms_that_update_an_argument_are_left_out_of_a_function_of_pytorch(
    tmp_path: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evo.suites.preparing.compiler_seeds", lambda task, target: ())
    root = tiny_suites.tritonbench(tmp_path / "checkout")
    ready, task = prepared(find_suite("tritonbench-t"), root, tmp_path / "run", "squared_relu", tools)
    assert (ready.stage, ready.oracle) == ("started", "pytorch64")
    assert any("they update an argument" in note for note in ready.notes)
    assert task is not None
    (x,) = (item for item in make_inputs(task, task.small_cases[0], 0, "cpu").arguments if isinstance(item, torch.Tensor))
    arguments = make_inputs(task, task.small_cases[0], 0, "cpu").arguments
    assert torch.equal(task.reference(*arguments), torch.relu(x) ** 2)
    assert task.mutates == ()


@pytest.mark.slow
def test_tests_for_pytest_are_run_on_their_parameters_and_traced_for_amd(tmp_path: Path) -> None:
    suite = find_suite("rocm")
    root = tiny_suites.rocm(tmp_path / "checkout")
    tools = Tools(Recording("hip:gfx942"), Workbench("hip:gfx942", workers=1))
    try:
        folder = RunFolder(tmp_path / "run", suite, root)
        (problem,) = suite.problems(root)
        ready = prepare(suite, root, problem, folder.of(problem), tools, "hip:gfx942")
        assert (ready.stage, ready.gpu_only) == ("ready", "")
        task = load_task(str(folder.of(problem) / "task.py"), check=False)
        sizes = [item.shape for case in task.training_cases for item in case.arguments if isinstance(item, TensorSpec)]
        assert set(sizes) == {(1 << 14,)}, "scored is what the suite measures"
        assert task.mutates == (1,)
    finally:
        tools.recording.close()
        tools.bench.close()


def test_a_model_with_running_statistics_buffers_and_constants_of_a_tuple(
    tmp_path: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evo.suites.preparing.compiler_seeds", lambda task, target: ())
    root = tiny_suites.kernelbench(tmp_path / "checkout")
    ready, task = prepared(find_suite("kernelbench-2"), root, tmp_path / "run", "7", tools)
    assert (ready.stage, ready.gpu_only) == ("started", "")
    assert task is not None
    (case,) = task.training_cases
    x = case.arguments[0]
    assert isinstance(x, TensorSpec)
    assert x.shape == (4096, 512)
    small = make_inputs(task, task.small_cases[0], 0, "cpu").arguments
    normal = torch.nn.functional.batch_norm(small[0], None, None, *small[1:], training=True)
    expected = torch.relu(normal) + torch.arange(small[0].shape[1])
    assert torch.equal(task.reference(*small), expected)
    # As its user calls it: with the parameters as its own, on inputs alone.
    assert torch.equal(task.reference.bound(small)(small[0]), expected)  # type: ignore[attr-defined]


def test_what_a_reference_does_in_one_call_only_ends_no_suite(tmp_path: Path) -> None:
    x, large = torch.zeros(4, 8), torch.ones(16, 16)
    returned = with_arguments((torch.ones(4, 8), torch.ones(2, 4), large), {0: 0, 1: 0, 2: 0}, [x])
    assert returned[0] is x
    assert returned[1].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert returned[2] is large, "no view of x has so many elements"
    text = tiny_suites.FAILING_TASK
    (tmp_path / "task.py").write_text(text)
    problem = interpreted(load_task(str(tmp_path / "task.py"), check=False)).problem
    assert problem == "ZeroDivisionError: integer division or modulo by zero"


@pytest.mark.slow
def test_sizes_at_which_a_kernel_leaves_its_tensors_are_left_out(tmp_path: Path, tools: Tools) -> None:
    root = tiny_suites.more_of_tritonbench(tmp_path / "checkout")
    ready, task = prepared(find_suite("tritonbench-g"), root, tmp_path / "run", "unmasked", tools)
    assert (ready.stage, ready.gpu_only) == ("ready", "")
    assert task is not None
    sizes = [max(item.numel for item in case.arguments if isinstance(item, TensorSpec)) for case in task.small_cases]
    assert (sizes, ready.cases) == ([16, 32], (2, 1, 0))
    assert any("touches memory beyond its tensors" in note for note in ready.notes)
    assert task.allowed_operators == {"aten.mul", "aten.add"}, "what its own wrapper uses besides"


@pytest.mark.slow
def test_a_kernel_that_draws_its_own_inputs_is_refused(tmp_path: Path, tools: Tools) -> None:
    root = tiny_suites.more_of_tritonbench(tmp_path / "checkout")
    ready, _ = prepared(find_suite("tritonbench-g"), root, tmp_path / "run", "own_inputs", tools)
    assert ready.stage == "checked"
    assert ready.reason.startswith("it draws what it computes with itself, by aten.randn")


def test_small_cases_tell_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(tiny_suites.FAILING_TASK)
    task = load_task(str(tmp_path / "task.py"), check=False)

    def reference(x: torch.Tensor) -> torch.Tensor:
        if x.numel() == 3:
            raise BeyondItsTensors("the kernel", given="out of bounds: 1 of 4 addresses")
        return torch.zeros(1) if x.numel() == 5 else x

    scored = dataclasses.replace(task.cases[0], name="scored")
    task = dataclasses.replace(
        task, small_cases=tuple(reversed(task.cases)), training_cases=(scored,), held_out_cases=(), reference=reference
    )
    assert interpreted(task) == Interpreted("", ("3",)), "the second tells nothing of inputs, the third does"
    assert interpreted(task, again=False) == interpreted(task)
    varying = dataclasses.replace(task, reference=lambda x: torch.rand(3))
    assert interpreted(varying).problem == "it gives other results on equal inputs"
    alone = dataclasses.replace(task, small_cases=tuple(case for case in task.small_cases if case.name == "3"))
    assert interpreted(alone) == Interpreted("the kernel; given 'out of bounds: 1 of 4 addresses'"), "nothing would be left"


def test_every_packaged_suite_can_be_made() -> None:
    for name in suite_names():
        assert find_suite(name).name == name
