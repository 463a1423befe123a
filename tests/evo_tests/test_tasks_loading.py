"""A broken task file is refused in one line that names the file, the fault and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo.errors import TaskError
from evo.tasks.base import Task
from evo.tasks.loading import load_task, reference_source, starting_sources

GOOD = '''
import torch

from evo.tasks.base import Case, Task, TensorSpec

FACTOR = 2.0


def twice(x):
    return x * FACTOR


def double(x):
    """Doubles."""
    return twice(x)


def unrelated(x):
    return x


CASE = Case("small", (TensorSpec((3, 5), "float16"),), bytes=60, flops=15)
LARGE = Case("large", (TensorSpec((64, 64), "float16"),), bytes=16384, flops=4096)

TASK = Task(
    name="double",
    description="y = 2 x",
    entry="double",
    reference=double,
    training_cases=(LARGE,),
    held_out_cases=(),
    small_cases=(CASE,),
    starting_kernels=("kernels/double.py",),
)
'''
KERNEL = "import torch\n\nCONFIG = {'BLOCK': 64}\n\n\ndef double(x):\n    return torch.empty_like(x)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "double.py").write_text(KERNEL)
    (tmp_path / "task.py").write_text(GOOD)
    return tmp_path


def refuse(reference: str, base: Path, *expected: str) -> None:
    with pytest.raises(TaskError) as caught:
        load_task(reference, base)
    text = str(caught.value)
    assert "\n" not in text
    for part in expected:
        assert part in text, text


def edit(folder: Path, old: str, new: str) -> Path:
    assert old in GOOD
    (folder / "task.py").write_text(GOOD.replace(old, new))
    return folder


def test_a_file_anywhere_on_disk_is_a_task(folder: Path) -> None:
    for reference, base in (("task.py", folder), (str(folder / "task.py"), None), ("./task.py", folder)):
        task = load_task(reference, base)
        assert isinstance(task, Task)
        assert task.path == (folder / "task.py").resolve()
        assert starting_sources(task) == (KERNEL,)


def test_a_dotted_module_and_a_builtin_name_are_the_same_task() -> None:
    assert load_task("evo.tasks.softmax") == load_task("softmax")


def test_an_inline_starting_kernel_needs_no_file(folder: Path) -> None:
    edit(folder, '"kernels/double.py"', repr(KERNEL))
    assert starting_sources(load_task("task.py", folder)) == (KERNEL,)


def test_the_source_of_a_reference_brings_its_helper_functions(folder: Path) -> None:
    source = reference_source(load_task("task.py", folder))
    assert "FACTOR = 2.0" in source
    assert source.index("def twice") < source.index("def double")
    assert "unrelated" not in source


def test_what_does_not_exist_is_named_with_the_builtin_tasks(folder: Path) -> None:
    refuse("missing.py", folder, str(folder / "missing.py"), "no such file", "softmax")
    refuse("softmaxx", folder, "task softmaxx", "a path that ends in .py", "did you mean softmax?")
    refuse("no_such_package.task", folder, "no_such_package", "softmax", "swiglu")
    refuse("json", folder, "__init__.py", "no TASK")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("import torch", "import torch(", ("task.py", "SyntaxError in line 2")),
        ("import torch", "import no_such_module", ("task.py", "ModuleNotFoundError", "no_such_module")),
        ("TASK =", "OTHER =", ("task.py", "no TASK", "define TASK")),
        ("TASK = Task(", "TASK = dict(", ("TASK of type dict", "evo.tasks.base.Task")),
        ('name="double"', 'name="a b"', ("task.py", "'a b'", "identifiers")),
        ('"float16"),), bytes=60', '"fp16"),), bytes=60', ("task.py", "'fp16'", "bfloat16")),
        ("small_cases=(CASE,)", "small_cases=()", ("at least one training case and one small case",)),
        ("small_cases=(CASE,)", "small_cases=(CASE, CASE)", ("case names must differ",)),
        ('"kernels/double.py",', '"kernels/gone.py",', ("starting_kernels", "kernels/gone.py", "relative to the task file")),
        ("return twice(x)", "raise ValueError('no good')", ("reference on case small", "ValueError: no good")),
        ("return twice(x)", "return x.half() * 2", ("in float64", "not float64", "promote_types")),
        ("return twice(x)", "return torch.ones(3, dtype=x.dtype)", ("equal outputs for different inputs",)),
        ("return twice(x)", "return x.mul_(2)", ("argument 0 modified", "mutates")),
        ("return twice(x)", "return 'text'", ("output of type str",)),
        ("return twice(x)", "return None", ("no output",)),
        ("return twice(x)", "return x.to_sparse()", ("torch.sparse_coo", "dense tensors")),
        ("return twice(x)", "return torch.empty(3, device='meta')", ("on meta", "dense tensors")),
        ("reference=double", "reference=double, mutates=(1,)", ("mutates", "given 1")),
    ],
)
def test_a_broken_task_is_refused(folder: Path, old: str, new: str, expected: tuple[str, ...]) -> None:
    refuse("task.py", edit(folder, old, new), *expected)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("def other(x):\n    return x\n", ("kernels/double.py", "no double", "define the entry double")),
        ("def double(x:\n", ("kernels/double.py", "SyntaxError in line 1")),
        (KERNEL + "SPACE = {'BLOCK': [128]}\n", ("kernels/double.py", "CONFIG['BLOCK'] = 64 is not among")),
    ],
)
def test_a_broken_starting_kernel_is_refused(folder: Path, kernel: str, expected: tuple[str, ...]) -> None:
    (folder / "kernels" / "double.py").write_text(kernel)
    refuse("task.py", folder, *expected)


def test_a_task_that_mutates_an_argument_as_declared_loads(folder: Path) -> None:
    edit(folder, "return twice(x)", "x.mul_(2)")
    text = (folder / "task.py").read_text().replace("reference=double", "reference=double, mutates=(0,)")
    (folder / "task.py").write_text(text)
    assert load_task("task.py", folder).mutates == (0,)
