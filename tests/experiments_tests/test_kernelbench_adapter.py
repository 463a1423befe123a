"""Problem files in KernelBench's form become tasks: distributions without data, shrunk cases, a reference per shape, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evo.errors import TaskError
from evo.suites.kernelbench_problems import ModelCall, find_problem, problem_task, read_problem, task_file
from evo.suites.kernelbench_sizes import reduced
from evo.tasks.base import TensorSpec
from evo.tasks.inputs import make_inputs
from evo.tasks.loading import load_task

NORM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x)


rows = 1 << 20
width = 1 << 12


def get_inputs():
    return [torch.rand(rows, width) * 4 - 2]


def get_init_inputs():
    return [width]
"""

KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr):
    pass

def forward(x, weight, bias):
    return x
"""


def problem(folder: Path, text: str, name: str = "7_Norm_.py") -> Path:
    level = folder / "KernelBench" / "level1"
    level.mkdir(parents=True, exist_ok=True)
    (level / name).write_text(text)
    return level / name


def inputs_of(folder: Path, drawn: str) -> tuple[object, ...]:
    text = NORM.replace("torch.rand(rows, width) * 4 - 2", drawn).replace("self.norm(x)", "x + x")
    return read_problem(problem(folder, text), []).training.case.arguments


def test_a_problem_of_gigabytes_is_read_without_drawing_its_inputs(tmp_path: Path) -> None:
    path = problem(tmp_path, NORM)
    assert find_problem(tmp_path, 1, 7) == path
    task = problem_task(path, [{"rows": 3, "width": 5}], [KERNEL])
    (case,) = task.training_cases
    x, weight, bias = case.arguments
    assert x == TensorSpec((1 << 20, 1 << 12), "float32", "uniform", low=-2.0, high=2.0)
    assert weight == TensorSpec((1 << 12,), "float32", "uniform", low=0.5, high=1.5)
    assert bias == TensorSpec((1 << 12,), "float32", "uniform", low=-0.5, high=0.5)
    assert case.bytes == 2 * x.nbytes + weight.nbytes + bias.nbytes
    assert (task.name, case.name) == ("kernelbench_1_7", "1048576x4096")


def test_small_cases_shrink_the_model_too_and_weights_count(tmp_path: Path) -> None:
    file = task_file(tmp_path, problem(tmp_path, NORM), [{"rows": 3, "width": 5}, {"rows": 2, "width": 33}], [KERNEL])
    task = load_task(str(file))
    for case in task.small_cases:
        x, weight, bias = make_inputs(task, case, 0, "cpu").arguments
        expected = torch.nn.functional.layer_norm(x, (x.shape[1],), weight, bias)
        assert torch.equal(task.reference(x, weight, bias), expected)
        assert not torch.allclose(task.reference(x, weight, bias), torch.nn.functional.layer_norm(x, (x.shape[1],)))


def test_small_cases_have_both_signs_where_the_model_takes_them(tmp_path: Path) -> None:
    unit = NORM.replace("torch.rand(rows, width) * 4 - 2", "torch.rand(rows, width)")
    small = [{"rows": 3, "width": 5}]
    read = read_problem(problem(tmp_path, unit), small)
    assert read.small[0].case.arguments[0] == TensorSpec((3, 5), "float32", "normal")
    assert read.training.case.arguments[0] == TensorSpec((1 << 20, 1 << 12), "float32", "uniform")
    roots = read_problem(problem(tmp_path, unit.replace("self.norm(x)", "x.sqrt()")), small)
    assert roots.small[0].case.arguments[0] == TensorSpec((3, 5), "float32", "uniform")


def test_distributions_follow_scaling_shifting_and_casting(tmp_path: Path) -> None:
    (half,) = inputs_of(tmp_path, "(0.5 * torch.randn(rows, width)).half()")[:1]
    assert half == TensorSpec((1 << 20, 1 << 12), "float16", "normal", scale=0.5)
    (labels,) = inputs_of(tmp_path, "torch.randint(0, 10, (rows, width))")[:1]
    assert labels == TensorSpec((1 << 20, 1 << 12), "int64", "integers", low=0.0, high=10.0)
    (upside_down,) = inputs_of(tmp_path, "1 - torch.rand(rows, width) / 2")[:1]
    assert upside_down == TensorSpec((1 << 20, 1 << 12), "float32", "uniform", low=0.5, high=1.0)


def test_a_random_factor_is_noted(tmp_path: Path) -> None:
    text = NORM.replace("torch.rand(rows, width) * 4 - 2", "torch.rand(rows, width) * torch.rand(())")
    read = read_problem(problem(tmp_path, text), [])
    assert read.notes == ("a random scalar that scales an input counts as 1",)
    assert read.training.case.arguments[0] == TensorSpec((1 << 20, 1 << 12), "float32", "uniform")


@pytest.mark.parametrize(
    ("drawn", "expected", "note"),
    [
        (
            "torch.triu(torch.rand(rows, rows))",
            TensorSpec((1 << 20, 1 << 20), "float32", "uniform"),
            "may not leave out its zeros",
        ),
        (
            "(lambda x: (x + x.T) / 2)(torch.rand(rows, rows))",
            TensorSpec((1 << 20, 1 << 20), "float32", "uniform"),
            "without symmetry",
        ),
        ("torch.rand(width, rows).T", TensorSpec((1 << 20, 1 << 12), "float32", "uniform", strides=(1, 1 << 20)), ""),
        ("torch.randint(0, 2, (rows,)).bool()", TensorSpec((1 << 20,), "bool", "integers", low=0.0, high=2.0), ""),
        (
            "torch.randint(0, 2, (rows,)).float() * 2 - 1",
            TensorSpec((1 << 20,), "float32", "integers", low=-1.0, high=2.0),
            "between",
        ),
    ],
)
def test_restricted_inputs_count_as_more_general_ones(tmp_path: Path, drawn: str, expected: TensorSpec, note: str) -> None:
    text = NORM.replace("torch.rand(rows, width) * 4 - 2", drawn).replace("self.norm(x)", "x[:2] * 1.0")
    read = read_problem(problem(tmp_path, text), [])
    assert read.training.case.arguments[0] == expected
    assert note in "; ".join(read.notes)


def test_a_softmax_of_random_numbers_keeps_its_range(tmp_path: Path) -> None:
    (spec,) = inputs_of(tmp_path, "torch.rand(64, 512).softmax(dim=-1)")[:1]
    assert isinstance(spec, TensorSpec)
    drawn = torch.rand(64, 512).softmax(dim=-1)
    assert (spec.low, spec.high) == pytest.approx((float(drawn.min()), float(drawn.max())), rel=0.15)


def test_small_cases_are_bounded_and_the_full_size_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = NORM.replace("nn.LayerNorm(width)", "nn.Sequential(nn.Linear(width, width), nn.GroupNorm(16, width))")
    made: list[int] = []
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", lambda self: made.append(self.in_features))
    read, chosen = reduced(problem(tmp_path, text.replace("1 << 12", "4096").replace("1 << 20", "1048576")), 2000)
    assert chosen == {"rows": 5, "width": 32}, "eight channels are no sixteen groups"
    assert made.count(4096) == 1
    assert sum(item.numel for item in read.small[0].case.arguments if isinstance(item, TensorSpec)) <= 2000


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("torch.rand(rows, width) * 4 - 2", "torch.randn(rows, width).softmax(dim=-1)", "softmax of normal"),
        ("torch.rand(rows, width) * 4 - 2", "torch.rand(rows, width).bool()", "bool of uniform"),
        ("* 4 - 2", ".cumsum(0)", "cumsum"),
        ("torch.rand(rows, width) * 4 - 2", "'text'", "a str"),
        ("def get_inputs", "def inputs", "get_inputs"),
        ("[width]", "[no_such_name]", "no_such_name"),
    ],
)
def test_what_no_task_can_say_is_refused_with_a_reason(tmp_path: Path, old: str, new: str, reason: str) -> None:
    with pytest.raises(TaskError, match=reason):
        read_problem(problem(tmp_path, NORM.replace(old, new)), [])


def test_running_statistics_are_not_kept_and_other_buffers_are_constants(tmp_path: Path) -> None:
    path = problem(tmp_path, NORM.replace("nn.LayerNorm(width)", "nn.BatchNorm1d(width)"))
    setting = read_problem(path, [{"rows": 3, "width": 5}]).small[0]
    x, *parameters = (torch.randn(item.shape) for item in setting.case.arguments if isinstance(item, TensorSpec))
    expected = torch.nn.functional.batch_norm(x, None, None, *parameters, training=True)
    call = ModelCall(setting.model)
    assert torch.equal(call(x, *parameters), expected)
    assert torch.equal(call(x, *parameters), expected)
    masked = NORM.replace("self.norm = nn.LayerNorm(width)", "self.register_buffer('mask', torch.arange(width) > 1)")
    masked = masked.replace("self.norm(x)", "x * self.mask")
    setting = read_problem(problem(tmp_path, masked), [{"rows": 3, "width": 5}]).small[0]
    x = torch.ones(3, 5, dtype=torch.float64)
    assert ModelCall(setting.model)(x).tolist() == [[0.0, 0.0, 1.0, 1.0, 1.0]] * 3


def test_an_unknown_constant_and_a_missing_problem_are_named(tmp_path: Path) -> None:
    path = problem(tmp_path, NORM)
    with pytest.raises(TaskError, match=r"constant columns.*rows"):
        read_problem(path, [{"columns": 3}])
    with pytest.raises(TaskError, match="problem 8 of level 1"):
        find_problem(tmp_path, 1, 8)
