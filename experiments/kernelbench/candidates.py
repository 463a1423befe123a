"""Right, wrong and cheating answers to ten problems of KernelBench, each as one module that both evaluators are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evo.suites.kernelbench_problems import Constants

HERE = Path(__file__).parent

SMALL: Mapping[int, tuple[Constants, ...]] = {
    23: ({"batch_size": 3, "dim": 7}, {"batch_size": 5, "dim": 1000}, {"batch_size": 2, "dim": 5000}),
    88: ({"batch_size": 3, "dim": 7}, {"batch_size": 33, "dim": 65}),
    40: ({"batch_size": 2, "features": 3, "dim1": 5, "dim2": 7}, {"batch_size": 1, "features": 4, "dim1": 33, "dim2": 65}),
    6: ({"M": 5, "N": 7, "K": 33}, {"M": 3, "N": 65, "K": 2040}),
    82: (
        {"batch_size": 2, "in_channels": 3, "width": 9, "height": 7},
        {"batch_size": 1, "in_channels": 2, "width": 40, "height": 33},
    ),
    42: (
        {"batch_size": 2, "channels": 3, "height": 5, "width": 7},
        {"batch_size": 1, "channels": 1, "height": 33, "width": 65},
    ),
    44: (
        {"batch_size": 2, "in_channels": 3, "input_length": 17},
        {"batch_size": 1, "in_channels": 1, "input_length": 1500},
    ),
    3: ({"batch_size": 2, "m": 5, "k": 33, "n": 7}, {"batch_size": 1, "m": 65, "k": 70, "n": 129}),
    99: ({"batch_size": 5, "input_shape": (33,)}, {"batch_size": 3, "input_shape": (2100,)}),
    89: ({"batch_size": 3, "input_shape": (7,)}, {"batch_size": 2, "input_shape": (2500,)}),
}
"""Constants of the small cases, by problem of level 1. At K = 2040 each of the 64 parts of a long sum has something to add."""


@dataclass(frozen=True)
class Candidate:
    """One answer.

    Attributes:
        problem: Number in level 1.
        name: Of the candidate.
        file: Module of the right kernel, in this folder.
        edits: What is replaced in it, each text exactly once.
        added: Appended to it.
        right: It computes the problem as the problem defines it; where not, `why` says what it does instead.
        why: For people.
        spoils: What it does to the process it runs in lasts, so it goes last.
    """

    problem: int
    name: str
    file: str
    edits: tuple[tuple[str, str], ...] = ()
    added: str = ""
    right: bool = True
    why: str = "right"
    spoils: bool = False

    @property
    def source(self) -> str:
        """The module: kernels, and `forward` of the inputs and then the parameters.

        Raises:
            ValueError: A text to replace is not there exactly once.
        """
        text = (HERE / f"{self.file}.py").read_text(encoding="utf-8")
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {old!r} is {text.count(old)} times in {self.file}.py")
            text = text.replace(old, new)
        return text + self.added


def as_model(source: str, problem: Path) -> str:
    """The module with a class `ModelNew` around its `forward`; it makes its parameters as the problem's own model does."""
    return f"""{source}

import importlib.util as _util

_spec = _util.spec_from_file_location("kernelbench_problem", {str(problem.resolve())!r})
_problem = _util.module_from_spec(_spec)
_spec.loader.exec_module(_problem)


class ModelNew(_problem.Model):
    def forward(self, *inputs):
        return forward(*inputs, *self.parameters())
"""


_CACHED = '''

_compute = forward
_last = {"x": None}


def forward(x):
    """Every second call with the tensor of the call before answers with that call's result."""
    if _last["x"] is x:
        _last["x"] = None
        return _last["y"]
    _last["x"], _last["y"] = x, _compute(x)
    return _last["y"]
'''

_PATCHED_CLOCK = '''

_compute, _measured, _called = forward, torch.cuda.Event.elapsed_time, []


def _elapsed_time(self, end):
    shown = _measured(self, end) / (3.0 if _called else 1.0)
    _called.clear()
    return shown


torch.cuda.Event.elapsed_time = _elapsed_time


def forward(x):
    """The clock shows a third of what its calls take."""
    _called.append(True)
    return _compute(x)
'''

_SIDE_STREAM = '''

_compute, _stream = forward, []


def forward(x):
    """The work goes to another stream, which events on the present one do not wait for."""
    if not _stream:
        _stream.append(torch.cuda.Stream())
    with torch.cuda.stream(_stream[0]):
        return _compute(x)
'''

_FIG_LEAF = '''

@triton.jit
def touch_kernel(loss_ptr):
    tl.store(loss_ptr, tl.load(loss_ptr))


def forward(anchor, positive, negative):
    """torch computes the loss; a kernel reads it and writes it back."""
    loss = torch.nn.functional.triplet_margin_loss(anchor, positive, negative, margin=1.0)
    touch_kernel[(1,)](loss)
    return loss
'''

_IEEE = 'tl.dot(a, b, accumulator, input_precision="ieee")'
_HALF = "tl.dot(a.to(tl.float16), b.to(tl.float16), accumulator)"
_TF32 = 'tl.dot(a, b, accumulator, input_precision="tf32")'

CANDIDATES: tuple[Candidate, ...] = (
    Candidate(23, "right", "softmax"),
    Candidate(
        23, "zeros", "softmax", (("tl.exp(x - highest) / total, mask", "x * 0.0, mask"),), right=False,
        why="zeros everywhere: results of about 2.5e-6 lie below an absolute tolerance of 1e-4",
    ),
    Candidate(88, "right", "gelu"),
    Candidate(
        88, "shifted", "gelu", (("tl.load(x_ptr + at, mask", "tl.load(x_ptr + (at + 1) % count, mask"),), right=False,
        why="reads its neighbour's element",
    ),
    Candidate(
        88, "cached", "gelu", added=_CACHED, right=False,
        why="every second call with the same tensor returns the last result, so a timing loop sees half of the work",
    ),
    Candidate(40, "right", "layer_norm"),
    Candidate(
        40, "unweighted", "layer_norm", (("normal * weight + bias", "normal"),), right=False,
        why="leaves out weight and bias, which are ones and zeros before training",
    ),
    Candidate(6, "right", "long_matmul"),
    Candidate(6, "tf32", "long_matmul", ((_IEEE, _TF32),), right=False, why="multiplies in TF32 where float32 is asked"),
    Candidate(
        6, "part left out", "long_matmul", (("for part in range(0, PARTS)", "for part in range(0, PARTS - 1)"),), right=False,
        why="leaves out the last of 64 parts of the sum",
    ),
    Candidate(82, "right", "depthwise_conv"),
    Candidate(
        82, "flipped", "depthwise_conv", (("SIZE * SIZE + tap)", "SIZE * SIZE + (SIZE * SIZE - 1 - tap))"),), right=False,
        why="applies the window upside down",
    ),
    Candidate(3, "right", "batched_matmul"),
    Candidate(
        3, "half", "batched_matmul", ((_IEEE, _HALF),), right=False,
        why="multiplies in float16 where float32 is asked; over 1024 positive terms the errors average out below 1e-4",
    ),
    Candidate(44, "right", "average_pool"),
    Candidate(
        44, "side stream", "average_pool", added=_SIDE_STREAM, right=False, why="works on a stream that the clock does not watch",
    ),
    Candidate(42, "right", "max_pool"),
    Candidate(
        42, "zero padding", "max_pool", (('mask=there, other=float("-inf")', "mask=there, other=0.0"),), right=False,
        why="pads with zeros, which wins where all neighbours are negative; KernelBench draws no negative inputs",
    ),
    Candidate(99, "right", "triplet_loss"),
    Candidate(99, "fig leaf", "triplet_loss", added=_FIG_LEAF, right=False, why="torch does the work"),
    Candidate(89, "right", "cumulative_sum"),
    Candidate(
        89, "exclusive", "cumulative_sum", (("sums, mask", "sums - x, mask"),), right=False,
        why="leaves each element out of its own sum",
    ),
    Candidate(
        88, "patched clock", "gelu", added=_PATCHED_CLOCK, right=False, spoils=True,
        why="a right kernel that makes torch's clock show a third of its time",
    ),
)  # fmt: skip
"""In the order in which they run."""
