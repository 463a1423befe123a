"""The eight awkward kernels and their tasks: what a launch plan must carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from evo.tasks.base import Case, Task, TensorSpec

FOLDER = Path(__file__).parent / "awkward"


def _task(name: str, *arguments: Any, **more: Any) -> Task:
    case = Case("only", arguments, bytes=1, flops=0)
    small = Case("small", arguments, bytes=1, flops=0)
    path = FOLDER / f"{name}.py"
    return Task(name, "awkward", "entry", _no_reference, (case,), (), (small,), (str(path),), **more)


def _no_reference(*arguments: Any) -> torch.Tensor:
    raise AssertionError("these tasks compare a replay with the usual launch, not with a reference")


TASKS = {
    task.name: task
    for task in (
        _task(
            "kv_cache_update",
            TensorSpec((3, 4, 64), "float16"), TensorSpec((3, 4, 64), "float16"),
            TensorSpec((3, 4, 128, 64), "float16"), TensorSpec((3, 4, 128, 64), "float16"),
            TensorSpec((3,), "int32", "integers", low=0, high=128),
            mutates=(2, 3),
        ),
        _task("atomic_histogram", TensorSpec((10_007,), "int32", "integers", low=0, high=61), 61),
        _task("autograd_scale_gelu", TensorSpec((300, 128), "float32", requires_grad=True),
              TensorSpec((128,), "float32", requires_grad=True), backward=True),
        _task("several_outputs", TensorSpec((77, 300), "float32")),
        _task("host_descriptor", TensorSpec((256, 128), "float16"), TensorSpec((128, 192), "float16")),
        _task("global_scratch", TensorSpec((96, 128), "float32")),
        _task("autotuned_split_k", TensorSpec((128, 1000), "float32"), TensorSpec((1000,), "float32")),
        _task("packed_linear", TensorSpec((70, 200), "float16"), form="module", init_arguments=(200, 130),
              parameters={"weight": TensorSpec((130, 200), "float32"), "bias": TensorSpec((130,), "float32")}),
    )
}  # fmt: skip


def source_of(task: Task) -> str:
    """Text of the kernel module."""
    return (FOLDER / f"{task.name}.py").read_text()
