"""The kernels that rewrites are proved on: those of this project, and those of other projects where they are at hand."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evo.suites.tritonbench_files import SEPARATOR
from experiments.rewrites.flag_gems import FLAG_GEMS, FLAG_GEMS_CALLS
from experiments.rewrites.liger_calls import LIGER_CALLS
from experiments.rewrites.other_projects import PROJECTS, PROJECTS_KNOWN, drivers
from experiments.rewrites.proving import LIGER
from operators.rewrite.name_arguments import NameArguments
from operators.rewriting import offers

ROOT = Path(__file__).resolve().parents[2]
TRITONBENCH = "TRITON_EVOLVE_TRITONBENCH"
"""Environment variable that names the folder TritonBench_G_v1."""
FOLDERS = {
    "starts": "evo/tasks/starts",
    "kernels": "tests/operators_tests/kernels",
    "tuning": "experiments/tuning/kernels",
    "kernelbench": "experiments/kernelbench",
}
SMALL = {
    **dict.fromkeys(("BLOCK", "SIZE", "BLOCK_M", "BLOCK_N", "BLOCK_K", "R", "C", "BLOCK_SIZE"), 16),
    "ROWS": 2, "PROGRAMS": 2, "GROUP": 2, "SPLIT": 2, "TILES": 2, "UNROLL": 2,
}  # fmt: skip
"""Knobs that make small cases take several blocks, rows, programs."""


@dataclass(frozen=True)
class Specimen:
    """A kernel module, with code that calls it, where there is a way to."""

    name: str
    source: str
    driver: str = ""


def own_specimens() -> list[Specimen]:
    """The kernels of this project, with drivers that call them; where launches unpack their knobs, with these written out as well."""
    found = []
    for name, calls in CALLS.items():
        folder, _, file = name.partition("/")
        source = (ROOT / FOLDERS[folder] / f"{file}.py").read_text()
        driver = DRIVER.format(calls=calls)
        found.append(Specimen(name, source, driver))
        found += [Specimen(f"{name} named", offer.source, driver) for offer in offers(NameArguments(), source).children]
    return found


def tritonbench_specimens() -> list[Specimen]:
    """The files of TritonBench-G with their own tests; none where the environment names no folder."""
    folder = os.environ.get(TRITONBENCH, "")
    found = []
    for path in sorted(Path(folder).glob("*.py")) if folder else []:
        kernels, _, driver = path.read_text().partition(SEPARATOR)
        found.append(Specimen(f"tritonbench/{path.stem}", kernels, driver.lstrip("#")))
    return found


def liger_specimens() -> list[Specimen]:
    """Modules of Liger with a way to call them; none where the environment names no folder."""
    root = Path(os.environ.get(LIGER, "")) / "liger_kernel/ops"
    return _called("liger", root, LIGER_CALLS) if os.environ.get(LIGER) else []


def flag_gems_specimens() -> list[Specimen]:
    """Modules of FlagGems with a way to call them; none where the environment names no folder."""
    root = Path(os.environ.get(FLAG_GEMS, "")) / "flag_gems"
    return _called("flag_gems", root, FLAG_GEMS_CALLS) if os.environ.get(FLAG_GEMS) else []


def other_specimens() -> list[Specimen]:
    """Modules of further projects with a way to call them; none where the environment names no folder."""
    folder = os.environ.get(PROJECTS, "")
    known = PROJECTS_KNOWN.items() if folder else ()
    return [item for name, project in known for item in _called(name, Path(folder, name, project.root), drivers(project))]


def foreign_specimens() -> list[Specimen]:
    """Those of all other projects whose folders the environment names, in a random order that is always the same."""
    found = [*tritonbench_specimens(), *liger_specimens(), *flag_gems_specimens(), *other_specimens()]
    random.Random(0).shuffle(found)
    return found


def _called(project: str, root: Path, drivers: Mapping[str, str]) -> list[Specimen]:
    """A release may lack a module that another has."""
    paths = {name: root / f"{name}.py" for name in sorted(drivers)}
    return [Specimen(f"{project}/{name}", path.read_text(), drivers[name]) for name, path in paths.items() if path.exists()]


DRIVER = """
import torch

def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda").to(dtype)

half = torch.float16
result_gold = [{calls}]
"""
CALLS = {
    "starts/attention": "attention(*(drawn(1, 2, 37, 16, dtype=half) for _ in range(3)))",
    "starts/gemm_bias_gelu": "gemm_bias_gelu(drawn(17, 21), drawn(21, 33), drawn(33))",
    "starts/quantize_rows": "quantize_rows(drawn(3, 37)), quantize_rows(drawn(2, 64))",
    "starts/rms_norm": "rms_norm(drawn(3, 37), drawn(3, 37), drawn(37), 1e-5)",
    "starts/softmax": "softmax(drawn(3, 37, dtype=half)), softmax(drawn(2, 64, dtype=half))",
    "starts/swiglu": "swiglu(drawn(3, 37, dtype=half), drawn(3, 37, dtype=half)), swiglu(drawn(2, 64), drawn(2, 64))",
    "kernels/two_pass_norm": "entry(drawn(3, 37)), entry(drawn(2, 64))",
    "kernels/row_moments": "entry(drawn(3, 37)), entry(drawn(2, 64))",
    "kernels/weight_gradient": "entry(drawn(7, 37), drawn(7, 37)), entry(drawn(8, 64), drawn(8, 64))",
    "kernels/add_relu": "entry(drawn(3, 37), drawn(3, 37)), entry(drawn(2, 1024), drawn(2, 1024))",
    "kernels/atomic_sums": "entry(drawn(3, 37)), entry(drawn(70, 64))",
    "kernels/two_launches": "entry(drawn(3, 37), drawn(3, 37).t().contiguous().t()), entry(drawn(2, 64), drawn(2, 64))",
    "kernels/module_weights": "entry(drawn(3, 37)), entry(drawn(2, 64))",
    "kernels/l2_normalise": "entry(drawn(3, 37)), entry(drawn(2, 64))",
    "kernels/layer_norm": "entry(drawn(3, 37), drawn(37), drawn(37)), entry(drawn(2, 64), drawn(64), drawn(64))",
    "kernels/log_softmax": "entry(drawn(3, 37)), entry(drawn(2, 64))",
    "kernels/looped_norm": "entry(drawn(3, 37)), entry(drawn(2, 64))",
    "kernels/one_pass_norm": "entry(drawn(3, 37)), entry(drawn(64, 2).t(), drawn(64))",
    "kernels/prefix_sum": "entry(drawn(3, 37)), entry(drawn(2, 64))",
    "kernels/rope": "entry(drawn(3, 74), drawn(3, 37), drawn(3, 37)), entry(drawn(2, 128), drawn(2, 64), drawn(2, 64))",
    "kernels/row_max": "entry(drawn(3, 37)), entry(drawn(2, 64))",
    "kernels/scale_columns": "entry(drawn(3, 37), drawn(37)), entry(drawn(2, 64), drawn(64))",
    "kernels/shared_weights": "entry(drawn(3, 37), drawn(37)), entry(drawn(2, 64), drawn(64))",
    "kernels/wrapped_copy": "entry(drawn(3, 37)), entry(drawn(2, 64))",
    "kernels/sum_products": "entry(drawn(3, 37), drawn(3, 37)), entry(drawn(2, 64), drawn(2, 64))",
    "tuning/column_sum": "column_sum(drawn(37, 19)), column_sum(drawn(64, 32))",
    "tuning/cumsum": "cumsum(drawn(3, 37)), cumsum(drawn(2, 64))",
    "tuning/gemm": "gemm(drawn(65, 40, dtype=half), drawn(40, 70, dtype=half))",
    "tuning/layer_norm": "layer_norm(drawn(3, 37), drawn(37), drawn(37), 1e-5), layer_norm(drawn(2, 64), drawn(64), drawn(64), 1e-5)",
    "tuning/matvec": "matvec(drawn(19, 37), drawn(37)), matvec(drawn(32, 64), drawn(64))",
    "tuning/row_sum": "row_sum(drawn(3, 37)), row_sum(drawn(2, 64))",
    "tuning/transpose": "transpose(drawn(19, 37)), transpose(drawn(32, 64))",
    "kernelbench/softmax": "forward(drawn(2, 5000))",
    "kernelbench/gelu": "forward(drawn(3, 37))",
    "kernelbench/batched_matmul": "forward(drawn(2, 17, 21), drawn(2, 21, 33))",
    "kernelbench/long_matmul": "forward(drawn(17, 70), drawn(70, 33))",
}
"""Kernel → what its driver calls."""
