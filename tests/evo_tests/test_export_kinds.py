"""Kernels of awkward kinds are exported as judged: an autotuned one pinned to its choice, one with gradients, one that writes in place,
one whose outputs are random, one that takes scratch memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from awkward_kernels import FOLDER
from exported_store import H200, Judge, lineage, write_store

from evo.reporting.export import ExportReport, export_front
from evo.tasks.loading import load_task

pytestmark = pytest.mark.slow

HEAD = """
import torch
from evo.tasks.base import Case, Task, TensorSpec


def case(name, *arguments):
    return Case(name, arguments, bytes=1000 + len(name), flops=0)

"""

MATVEC = """
def matvec(a, x):
    return a @ x


def matrix(rows, columns):
    return TensorSpec((rows, columns), "float32"), TensorSpec((columns,), "float32")


TASK = Task(
    name="product", description="Matrix times vector.", entry="entry", reference=matvec,
    training_cases=(case("8x1000", *matrix(8, 1000)),), held_out_cases=(case("16x1024", *matrix(16, 1024)),),
    small_cases=(case("4x300", *matrix(4, 300)),), starting_kernels=({path!r},),
)
"""

SCALE = """
def scale_gelu(x, w):
    z = x * w
    return z * torch.sigmoid(1.702 * z)


def pair(rows):
    return TensorSpec((rows, 16), "float32", requires_grad=True), TensorSpec((16,), "float32", requires_grad=True)


TASK = Task(
    name="scale", description="Scaled sigmoid GELU.", entry="entry", reference=scale_gelu, backward=True,
    training_cases=(case("300", *pair(300)),), held_out_cases=(), small_cases=(case("20", *pair(20)),),
    starting_kernels=({path!r},), allowed_operators=frozenset({{"aten.sum"}}),
)
"""

IN_PLACE = '''
def add_into(total, x):
    total += x
    return total


KERNEL = """
import torch, triton, triton.language as tl

@triton.jit
def add_kernel(total_ptr, x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(total_ptr + at, tl.load(total_ptr + at, mask=mask) + tl.load(x_ptr + at, mask=mask), mask=mask)

def add_into(total, x):
    add_kernel[(triton.cdiv(x.numel(), 128),)](total, x, x.numel(), BLOCK=128)
    return total
"""

TASK = Task(
    name="in_place", description="Adds x to total.", entry="add_into", reference=add_into, mutates=(0,),
    training_cases=(case("many", TensorSpec((500,), "float32"), TensorSpec((500,), "float32")),), held_out_cases=(),
    small_cases=(case("few", TensorSpec((70,), "float32"), TensorSpec((70,), "float32")),), starting_kernels=(KERNEL,),
)
'''

RANDOM = '''
from evo.tasks.random_tests import always


def coins(x):
    return torch.bernoulli(torch.full_like(x, 0.5))


def fair(arguments, outputs):
    yield always("a coin", (outputs[0] == 0) | (outputs[0] == 1))


KERNEL = """
import torch, triton, triton.language as tl

@triton.jit
def toss(y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.where(tl.rand(7, at) < 0.5, 1.0, 0.0), mask=at < n)

def coins(x):
    y = torch.empty_like(x)
    toss[(triton.cdiv(x.numel(), 128),)](y, x.numel(), BLOCK=128)
    return y
"""

TASK = Task(
    name="coin_tosses", description="A coin for each element.", entry="coins", reference=coins, oracle="stochastic", statistic=fair,
    training_cases=(case("many", TensorSpec((500,), "float32")),), held_out_cases=(),
    small_cases=(case("few", TensorSpec((70,), "float32")),), starting_kernels=(KERNEL,),
)
'''

DESCRIPTORS = '''
def doubled(x):
    return 2 * x


KERNEL = """
import torch, triton, triton.language as tl

@triton.jit
def twice(x_ptr, y_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, shape=[rows, columns], strides=[columns, 1], block_shape=[ROWS, COLUMNS])
    y = tl.make_tensor_descriptor(y_ptr, shape=[rows, columns], strides=[columns, 1], block_shape=[ROWS, COLUMNS])
    at = [tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS]
    y.store(at, x.load(at) * 2)

def doubled(x):
    y = torch.empty_like(x)
    twice[(triton.cdiv(x.shape[0], 8), triton.cdiv(x.shape[1], 32))](x, y, x.shape[0], x.shape[1], ROWS=8, COLUMNS=32)
    return y
"""

TASK = Task(
    name="doubled_matrix", description="Twice a matrix.", entry="doubled", reference=doubled,
    training_cases=(case("many", TensorSpec((40, 64), "float32")),), held_out_cases=(),
    small_cases=(case("few", TensorSpec((5, 32), "float32")),), starting_kernels=(KERNEL,),
)
'''

USE = """
import json, torch, triton
import doubled_matrix, in_place, product, scale

allocators = []
triton.set_allocator = allocators.append  # the interpreter allocates nothing

total = torch.zeros(500)
x = torch.rand(500)
alone = in_place.apply(total, x)
doubled = torch.ones(500)
leaf = torch.randn(300, 16, requires_grad=True)
scale.apply(leaf, torch.ones(16)).sum().backward()
product.apply(torch.randn(8, 1000), torch.randn(1000))
unneeded = len(allocators)
doubled_matrix.apply(torch.randn(40, 64))
print(json.dumps({
    "scratch": [unneeded, len(allocators), allocators[0](64, 16, None).nbytes],
    "updated": bool(torch.equal(total, x)) and alone is total,
    "aliased": in_place.explain(doubled, doubled)["reason"],
    "gradient": leaf.grad is not None,
    "fits": product.explain(torch.randn(8, 1000), torch.randn(1000))["kernel"],
    "differs": product.explain(torch.randn(8, 1010), torch.randn(1000))["reason"],
}))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExportReport]:
    folder = tmp_path_factory.mktemp("kinds")
    texts = {
        "product": MATVEC.format(path=str(FOLDER / "autotuned_split_k.py")),
        "scale": SCALE.format(path=str(FOLDER / "autograd_scale_gelu.py")),
        "in_place": IN_PLACE,
        "coin_tosses": RANDOM,
        "doubled_matrix": DESCRIPTORS,
    }
    judge, tasks, entries = Judge(), [], []
    for number, (name, text) in enumerate(texts.items()):
        path = folder / f"{name}.py"
        path.write_text(HEAD + text)
        task = load_task(str(path))
        item = task.starting_kernels[0]
        source = item if "\n" in item else Path(item).read_text()
        # The second configuration of the autotuned kernel: blocks of 128, split in four.
        chosen = [{"autotune:matvec": 1}] if name == "product" else [{}]
        verdict = judge.passed(task, source, [5.0], chosen, verify=True, how=H200)
        tasks.append(task)
        entries += lineage(number, name, source, verdict, strategy="start", verify=verdict)
    judge.close()
    with write_store(folder / "kinds.sqlite", tasks, entries) as store:
        yield export_front(store, folder / "front")


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"TRITON_INTERPRET": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_their_own_test_passes(report: ExportReport) -> None:
    assert [(task.task, len(task.kernels), task.refused) for task in report.tasks] == [
        ("product", 1, ()),
        ("scale", 1, ()),
        ("in_place", 1, ()),
        ("coin_tosses", 1, ()),
        ("doubled_matrix", 1, ()),
    ]
    done = run_python(report.out, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_front.py")
    assert done.returncode == 0, done.stdout
    assert "random outputs: their structure is as expected; values were judged by a statistic" in done.stdout


@pytest.mark.slow
def test_random_outputs_of_another_form_are_noticed(report: ExportReport, tmp_path: Path) -> None:
    copy = tmp_path / "front"
    shutil.copytree(report.out, copy)
    kernel = copy / "coin_tosses" / report.tasks[3].kernels[0].name
    kernel.write_text(kernel.read_text().replace("    return y\n", "    return y.double()\n"))
    selected = ("-k", "test_kernel_is_exact_and_leaves_inputs_alone and coin_tosses")
    done = run_python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *selected, "test_front.py")
    assert done.returncode == 1, done.stdout
    assert "torch.float64" in done.stdout


def test_an_autotuned_kernel_is_pinned_to_what_was_judged(report: ExportReport) -> None:
    data = json.loads(report.tasks[0].kernels[0].with_suffix(".json").read_text())
    (launch,) = data["launches"]["8x1000"]["launches"]
    assert launch["grid"] == [8, 4, 1]
    assert data["launches"]["8x1000"]["configuration"] == {"autotune:matvec": 1}


def test_gradients_updates_in_place_and_sizes_that_belong_together(report: ExportReport) -> None:
    done = run_python(report.out, "-c", USE)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["updated"]
    assert answer["gradient"]
    assert answer["scratch"] == [0, 1, 64], "Triton refuses to launch what makes descriptors without an allocator"
    assert answer["fits"] == report.tasks[0].kernels[0].stem
    assert "share memory" in answer["aliased"]
    assert answer["differs"].startswith("reference: ")
