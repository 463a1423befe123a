"""`triton-evolve init` on references of many kinds: what it writes loads as a task, and what it cannot use is one clear line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from evo.errors import InputError
from evo.initialising.reading import read_inputs
from evo.main import main
from evo.tasks.base import Task, TensorSpec
from evo.tasks.loading import load_task

OPERATORS = '''
import torch

def scaled_sum(x, k):
    """k times the sum of each row."""
    return x.sum(-1) * k

def update(x, y):
    x.mul_(0.5).add_(y)

def centred(x):
    m = x.mean(-1, keepdim=True)
    return x - m, {"mean": m}

def rows_of(table, places):
    return table[places]

def square(x):
    return x.reshape(7, 11)

def sizes(x):
    return x.shape

def nothing(x):
    return None

class Block(torch.nn.Module):
    """A linear layer and a norm."""

    def __init__(self, width=8, flag=True):
        super().__init__()
        self.line = torch.nn.Linear(width, 2 * width)
        self.norm = torch.nn.LayerNorm(2 * width)

    def forward(self, x):
        return self.norm(torch.relu(self.line(x)))
'''
SUITE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x, labels):
        return self.norm(x) * labels[:, None, None, None]

def get_inputs():
    return [torch.rand(1 << 20, 16, 32, 32), torch.randint(0, 10, (1 << 20,))]

def get_init_inputs():
    return [16]
"""

Init = Callable[..., Task]


@pytest.fixture
def init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Init:
    """Writes the file, runs the command in its folder and loads what it wrote."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.py").write_text(OPERATORS)
    (tmp_path / "suite.py").write_text(SUITE)

    def run(*arguments: str) -> Task:
        with pytest.raises(SystemExit) as ended:
            main(["init", *arguments, "--out", "made.py"])
        assert ended.value.code == 0
        return load_task("made.py")

    return run


def specs(task: Task) -> list[TensorSpec]:
    return [item for item in task.training_cases[0].arguments if isinstance(item, TensorSpec)]


def test_a_function_with_an_integer_argument(init: Init, capsys: pytest.CaptureFixture[str]) -> None:
    task = init("--reference", "ops.py:scaled_sum", "--inputs", "f32[1024,512], 3")
    assert (task.name, task.entry, task.kind) == ("scaled_sum", "scaled_sum", "reduction")
    (training,) = task.training_cases
    assert training.arguments == (TensorSpec((1024, 512), "float32"), 3)
    assert training.bytes == 4 * (1024 * 512 + 1024)
    assert all(size % 2 or size == 130 for case in task.small_cases for size in case.arguments[0].shape)  # type: ignore[union-attr]
    assert len(task.held_out_cases) == 2
    assert task.description.startswith("k times the sum of each row.")
    assert "next: triton-evolve doctor --task made.py" in capsys.readouterr().out
    assert "CHECK" in Path("made.py").read_text()


def test_an_update_in_place_is_seen(init: Init) -> None:
    assert init("--reference", "ops.py:update", "--inputs", "f32[64,32],f32[64,32]").mutates == (0,)


def test_nested_outputs_and_half_precision(init: Init) -> None:
    task = init("--reference", "ops.py:centred", "--inputs", "bf16[64,96]")
    assert specs(task)[0].dtype == "bfloat16"
    assert not task.mutates


def test_integers_that_are_places_get_a_range_that_the_reference_takes(init: Init) -> None:
    task = init("--reference", "ops.py:rows_of", "--inputs", "f32[100,64],i64[50]")
    assert [case.arguments[1].high for case in task.cases] == [case.arguments[0].shape[0] for case in task.cases]  # type: ignore[union-attr]


def test_a_module_keeps_its_parameters_and_the_sizes_that_they_fix(init: Init) -> None:
    task = init("--reference", "ops.py:Block", "--inputs", "f32[256,8]", "--name", "block")
    assert (task.name, task.form, task.entry) == ("block", "module", "Block")
    assert {name: spec.shape for name, spec in task.parameters.items()} == {
        "line.weight": (16, 8), "line.bias": (16,), "norm.weight": (16,), "norm.bias": (16,),
    }  # fmt: skip
    assert {case.arguments[0].shape[1] for case in task.cases} == {8}  # type: ignore[union-attr]


def test_inputs_and_buffers_of_a_suites_module_without_drawing_its_gigabytes(init: Init) -> None:
    task = init("--reference", "suite.py:Model")
    images, labels = specs(task)
    assert (images.shape, images.distribution) == ((1 << 20, 16, 32, 32), "uniform")
    assert (labels.distribution, labels.high) == ("integers", 10)
    assert task.init_arguments == (16,)
    assert "norm.running_var" in task.parameters
    assert task.parameters["norm.running_var"].low > 0, "a variance stays one"


def test_a_kernel_is_taken_as_the_start(init: Init, tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "k.py").write_text("import torch\n\ndef fast(x, k):\n    return x\n")
    task = init("--reference", "ops.py:scaled_sum", "--inputs", "f32[32,16],3", "--kernel", "kernels/k.py:fast")
    assert (task.entry, task.starting_kernels) == ("fast", ("kernels/k.py",))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--reference", "gone.py:f"), ["gone.py", "no such file"]),
        (("--reference", "ops.py"), ["FILE:NAME"]),
        (("--reference", "ops.py:gone", "--inputs", "f32[3]"), ["no such name", "scaled_sum"]),
        (("--reference", "ops.py:update"), ["no inputs", "--inputs"]),
        (("--reference", "ops.py:square", "--inputs", "f32[10,10]"), ["ops.py: square", "invalid for input of size 100"]),
        (("--reference", "ops.py:sizes", "--inputs", "f32[10,10]"), ["an output of type int"]),
        (("--reference", "ops.py:nothing", "--inputs", "f32[10,10]"), ["no output"]),
        (("--reference", "ops.py:update", "--inputs", "f32[10],f32[10],f32[10]"), ["3 inputs", "x, y"]),
        (("--reference", "ops.py:update", "--inputs", "q7[10]"), ["--inputs", "q7[10]"]),
        (("--kernel", "ops.py:update"), ["--reference"]),
    ],
)
def test_what_cannot_be_used_is_one_line(
    arguments: tuple[str, ...], said: list[str], init: Init, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["init", *arguments])
    assert ended.value.code == 2
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert all(part in line for part in said), line


def test_an_existing_file_is_kept(init: Init, tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main(["init", "--reference", "ops.py:centred", "--inputs", "f32[8,8]", "--out", "made.py"])
    assert ended.value.code == 2
    assert (tmp_path / "made.py").read_text() == "mine"


def test_inputs_in_words() -> None:
    assert read_inputs("f32[2,3], i64[4], b[1], 7, 1e-5, None, True, float16[]") == (
        TensorSpec((2, 3), "float32"), TensorSpec((4,), "int64", "integers", low=0, high=2),
        TensorSpec((1,), "bool", "integers", low=0, high=2), 7, 1e-5, None, True, TensorSpec((), "float16"),
    )  # fmt: skip
    with pytest.raises(InputError, match="such as"):
        read_inputs(" ")


NAMES = """
import torch

def reference(x):
    return x * 2

def case(x, *, eps=1e-5):
    return x / (x.abs() + eps)

class Task(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(8, 8)

    def forward(self, x):
        return reference(self.line(x))
"""


@pytest.mark.parametrize("name", ["case", "reference", "Task"])
def test_names_that_task_files_use_are_left_to_the_reference(name: str, init: Init, tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text(NAMES)
    task = init("--reference", f"names.py:{name}", "--inputs", "f32[32,8]")
    assert isinstance(task.training_cases[0].arguments[0], TensorSpec)


ODD = """
import torch

def scalar(x):
    return x * float(x.sum())

def some(x):
    return x[x > 0]

def random(x):
    return x + torch.rand_like(x)

def double(x):
    return x * 2
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--reference", "odd.py:scalar", "--inputs", "f32[8]"), ["odd.py: scalar", "depend on values in form or number"]),
        (("--reference", "odd.py:some", "--inputs", "f32[8]"), ["odd.py: some", "depend on values in form or number"]),
        (("--reference", "odd.py:random", "--inputs", "f32[8]"), ["other results on equal inputs", "must be an input"]),
        (("--reference", "odd.py:double", "--inputs", "f32[0]"), ["f32[0]", "at least 1"]),
        (("--reference", "odd.py:double", "--inputs", "f32[8]", "--out", "a/b.py"), ["a/b.py", "a folder that is not there"]),
        (
            ("--reference", "odd.py:double", "--inputs", "f32[8]", "--out", "/proc/b.py"),
            ["--out: /proc/b.py", "you may write to"],
        ),
        (("--reference", "odd.py:double", "--inputs", "f32[8]", "--out", "b.txt"), ["b.txt", "ends in .py"]),
        (("--reference", "odd.py:double", "--inputs", "f32[8]", "--name", "my task"), ["--name", "my task"]),
        (("--reference", "odd.py:double", "--inputs", "f32[8]", "--name", "class"), ["--name", "class"]),
        (
            ("--reference", "odd.py:double", "--inputs", "f32[8]", "--kernel", "k.py:Double"),
            ["k.py: Double", "a class", "function"],
        ),
        (("--reference", "odd.py:double", "--inputs", "f32[8]", "--kernel", "k.py:Double.run"), ["FILE:NAME", "function"]),
        (("--reference", "odd.py:double", "--inputs", "f32[8]", "--kernel", "latin.py:f"), ["latin.py", "UTF-8"]),
        (("--reference", "odd.py:double", "--inputs", "f32[8]", "--kernel", "open.py:f"), ["open.py", "does not parse"]),
        (("--reference", "task.py:double", "--inputs", "f32[8]"), ["task.py", "defines TASK"]),
        (
            ("--reference", "parted.py:f", "--inputs", "f32[8]"),
            ["No module named 'odd'", "take what it needs of odd into parted.py"],
        ),
    ],
)
def test_what_newcomers_try_is_one_line(
    arguments: tuple[str, ...], said: list[str], init: Init, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    (tmp_path / "task.py").write_text(ODD + "\nTASK = None\n")
    (tmp_path / "k.py").write_text("class Double:\n    def run(self, x):\n        return x\n")
    (tmp_path / "latin.py").write_bytes(b"def f(x):\n    return '\xff'\n")
    (tmp_path / "open.py").write_text("def f(x:\n")
    (tmp_path / "parted.py").write_text("from odd import double\n\ndef f(x):\n    return double(x)\n")
    before = set(tmp_path.iterdir())
    with pytest.raises(SystemExit) as ended:
        main(["init", *arguments])
    assert ended.value.code == 2
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert all(part in line for part in said), line
    assert set(tmp_path.iterdir()) == before, "nothing is left behind"


def test_masks_and_places_among_buffers_keep_their_range(init: Init, tmp_path: Path) -> None:
    text = NAMES.replace(
        "super().__init__()\n",
        """super().__init__()
        self.register_buffer("mask", torch.ones(8, dtype=torch.bool), persistent=False)
        self.register_buffer("places", torch.arange(8))
        self.register_buffer("count", torch.tensor(0))
""",
    ).replace("reference(self.line(x))", "self.line(x)[:, self.places] * self.mask + self.count")
    (tmp_path / "names.py").write_text(text)
    parameters = init("--reference", "names.py:Task", "--inputs", "f32[32,8]").parameters
    assert parameters["mask"] == TensorSpec((8,), "bool", "ones"), "of zeros, every result would be zero"
    assert parameters["places"] == TensorSpec((8,), "int64", "integers", low=0, high=8)
    assert parameters["count"] == TensorSpec((), "int64", "zeros")
