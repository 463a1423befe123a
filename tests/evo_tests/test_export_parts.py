"""What an export refuses, the guards it derives from cases, and the texts it writes."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import triton
from triton._C.libtriton import ir

sys.path.insert(0, str(Path(__file__).parent))
from exported_store import H200, MODEL, header_of, lineage, start_of, write_store

from evo.errors import InputError
from evo.knobs import read_knobs
from evo.records import CaseResult, Configuration, Evaluation, LatencyKind, Stage, Status, TrustLevel, Variant
from evo.reporting.export import export_front
from evo.reporting.exporting.guards import guard_table, related_sizes
from evo.reporting.exporting.kernel_text import kernel_text, kind_text
from evo.reporting.exporting.launches import code_hash
from evo.reporting.exporting.literals import literal
from evo.reporting.exporting.package import reference_text, template
from evo.reporting.exporting.selection import front_members, load_recorded
from evo.tasks.base import Case, TensorSpec
from evo.tasks.loading import load_task
from evo.tracing.plan import Kernel
from evo.tracing.targets import target_named


def passed(source: str, latency_us: float, error: float, how: tuple[str, TrustLevel, LatencyKind, int]) -> Evaluation:
    device, trust, kind, pairs = how
    case = CaseResult("c", Configuration(), error, latency_us, 10.0, 1.0, 1.0, 1.0, pairs, 8)
    return Evaluation(
        Variant("softmax", source).variant_id, Status.PASSED, Stage.TIME, device, "plan", trust, kind, 1.0, cases=(case,)
    )


def test_a_front_never_mixes_estimates_with_measurements(tmp_path: Path) -> None:
    task, _ = start_of("softmax")
    rows = [("a", 5.0, 0.5, H200), ("b", 9.0, 0.2, H200), ("c", 9.5, 0.3, H200), ("d", 0.1, 0.1, MODEL)]
    entries = [
        entry
        for number, (source, latency, error, how) in enumerate(rows)
        for entry in lineage(number, "softmax", source, passed(source, latency, error, how), strategy="s")
    ]
    with write_store(tmp_path / "s.sqlite", [task], entries) as store:
        assert [member.row.variant.source for member in front_members(store, "softmax")] == ["a", "b"]
    assert kind_text(LatencyKind.MODELLED, "cuda:90 (modelled)", 0) == "modelled estimate, not measured"


def test_refuses_in_one_line_what_cannot_be_exported(tmp_path: Path) -> None:
    task, source = start_of("softmax")
    with write_store(tmp_path / "empty.sqlite", [task], []) as store:
        with pytest.raises(InputError, match=r"nothing to export; given 'softmax: no variant passed'"):
            export_front(store, tmp_path / "out")
        with pytest.raises(InputError, match=r"--task; given 'gemm'; allowed: softmax"):
            export_front(store, tmp_path / "out", task="gemm")
    simulated = ("simulated", TrustLevel.INTERPRETED, LatencyKind.SIMULATED, 0)
    entries = lineage(0, "softmax", source, passed(source, 1.0, 0.5, simulated), strategy="s")
    with write_store(tmp_path / "sim.sqlite", [task], entries) as store, pytest.raises(InputError, match="nothing to export"):
        export_front(store, tmp_path / "out")
    entries = lineage(0, "softmax", source, passed(source, 1.0, 0.5, H200), strategy="s")
    old = write_store(tmp_path / "old.sqlite", [task], entries, triton="3.1.0")
    with old as store, pytest.raises(InputError, match=r"judged with triton 3\.1\.0; given"):
        export_front(store, tmp_path / "out")
    assert not (tmp_path / "out").exists()


MODULE_TASK = '''
from evo.tasks.base import Case, Task, TensorSpec


def linear(parameters, x):
    return x @ parameters["weight"].T


KERNEL = """
import torch

class Linear(torch.nn.Module):
    pass
"""

TASK = Task(
    name="linear", description="x times weight.", entry="Linear", reference=linear, form="module",
    training_cases=(Case("c", (TensorSpec((4, 8), "float32"),), bytes=1, flops=0),), held_out_cases=(),
    small_cases=(Case("s", (TensorSpec((2, 8), "float32"),), bytes=1, flops=0),), starting_kernels=(KERNEL,),
    parameters={"weight": TensorSpec((3, 8), "float32")},
)
'''


def test_modules_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "linear.py").write_text(MODULE_TASK)
    task = load_task(str(tmp_path / "linear.py"))
    source = task.starting_kernels[0]
    verdict = dataclasses.replace(passed(source, 1.0, 0.5, H200), variant_id=Variant("linear", source).variant_id)
    store = write_store(tmp_path / "s.sqlite", [task], lineage(0, "linear", source, verdict, strategy="s"))
    with store, pytest.raises(InputError, match=r"linear: kernels in the form of an nn\.Module cannot be exported"):
        export_front(store, tmp_path / "out")
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and path.name != "__pycache__"]


def test_a_folder_of_someone_else_is_not_touched(tmp_path: Path) -> None:
    task, source = start_of("softmax")
    entries = lineage(0, "softmax", source, passed(source, 1.0, 0.5, H200), strategy="s")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("")
    with write_store(tmp_path / "s.sqlite", [task], entries) as store:
        for out in (mine, tmp_path / "file"):
            with pytest.raises(InputError, match="only an empty folder or an earlier export is replaced"):
                export_front(store, out)
    assert (mine / "thesis.tex").read_text() == "years of work"


def test_a_changed_task_file_is_refused() -> None:
    task, _ = start_of("softmax")
    header = header_of([task])
    assert load_recorded(header, "softmax", json.loads(header.tasks)["softmax"]).name == "softmax"
    with pytest.raises(InputError, match="changed since the run began"):
        load_recorded(header, "softmax", "another text")


def test_guards_keep_kinds_of_inputs_apart() -> None:
    softmax = {item["arguments"][0]["dtype"]: item["arguments"][0]["sizes"] for item in guard_table(load_task("softmax"))}
    assert softmax["float16"] == [(4095, 16384), (1024, 2047)]  # that float32 was judged on 256 columns says nothing here
    (norm,) = guard_table(load_task("rms_norm"))
    assert norm["arguments"][3] == {"value": 1e-5}
    base = Case("a", (TensorSpec((8, 8), "float16", strides=(16, 1), offset=3),), bytes=1, flops=0)
    task = dataclasses.replace(load_task("softmax"), training_cases=(base,), held_out_cases=())
    assert guard_table(task)[0]["arguments"][0] == {
        "dtype": "float16",
        "strides": (16, 1),
        "alignment": 6,
        "sizes": [(8, 8), (8, 8)],
    }


def test_sizes_that_belong_together_are_found() -> None:
    groups = related_sizes(load_task("gemm_bias_gelu"))
    assert sorted(sorted((position, dimension) for position, dimension, _ in group) for group in groups) == [
        [(0, 1), (1, 0)],  # the inner dimension
        [(1, 1), (2, 0)],  # columns of b and the bias
    ]
    assert related_sizes(load_task("softmax")) == []


def test_held_out_cases_take_the_configuration_they_were_judged_in() -> None:
    task = load_task("softmax")
    assert task.nearest_training_case(task.case("8192x50257_bfloat16")).name == "4096x32000_bfloat16"
    assert task.nearest_training_case(task.training_cases[2]) is task.training_cases[2]


def test_setting_the_configuration_leaves_the_rest_as_it_was() -> None:
    source = 'é = "ü"; CONFIG = {  # why\n    "A": 1,\n    "B": "x",\n}; after = "ß"\nSPACE = {"A": [1, 2]}\n'
    tuned = {
        "one": Configuration({"A": 2, "B": "x"}),
        "two": Configuration({"A": 1, "B": "x"}),
        "three": Configuration({"A": 2, "B": "x"}),
    }
    text = kernel_text(source, "# comment\n", tuned)
    assert read_knobs(text).default == {"A": 2, "B": "x"}
    assert text.startswith('# comment\né = "ü"; CONFIG = {"A": 2, "B": "x"}; after = "ß"\nSPACE')
    assert ast.literal_eval(text.rpartition(" = ")[2])["two"] == {"A": 1, "B": "x"}


def test_a_reference_that_needs_this_project_is_refused(tmp_path: Path) -> None:
    assert "import evo" not in reference_text(load_task("quantize_rows"))
    path = tmp_path / "leaning.py"
    text = Path(str(load_task("softmax").path)).read_text()
    text = text.replace("torch.softmax(x, dim=-1)", "other(x)")
    text = text.replace("import torch\n", "import torch\nfrom evo.tasks.softmax import softmax as other\n")
    path.write_text(text.replace('"starts/softmax.py"', repr(start_of("softmax")[1])))
    with pytest.raises(InputError, match="must run without it"):
        reference_text(load_task(str(path)))


def test_literals_read_back() -> None:
    value = {"a" * 70: [1, 2.5, None, True], "b" * 70: ({"x": "☃\n\"'"}, (1,), ()), "c": []}
    text = literal(value)
    assert ast.literal_eval(text) == value
    assert max(map(len, text.splitlines())) <= 120
    assert literal(float("inf")) == 'float("inf")'


ASSEMBLY = """module {
  tt.func public @NAME(%x: !tt.ptr<i32>) {
    %c = arith.constant 1 : i32
    %r = tt.elementwise_inline_asm "PREDICATE mov.b32 $0, $1;" {constraints = "=r,r", packed_element = 1 : i32, pure = true} %c : i32 -> i32
    tt.store %x, %r : !tt.ptr<i32>
    tt.return
  }
}
"""


def test_the_exported_test_and_the_export_tell_the_same_code_apart() -> None:
    """Code is equal whatever its functions are called, and another where a predicate in inline assembly is another."""
    tree = ast.parse(template("test_front.txt"))
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "code_hash")
    names: dict[str, object] = {"hashlib": hashlib, "re": re, "tempfile": tempfile, "triton": triton, "Path": Path}
    exec(compile(ast.Module([function], []), "test_front.py", "exec"), names)
    exported = names["code_hash"]
    assert callable(exported)
    target = target_named("cuda:90").gpu_target
    context = ir.context()
    ir.load_dialects(context)
    hashes = []
    for name, predicate in (("first", "@p"), ("second", "@p"), ("first", "@q")):
        text = ASSEMBLY.replace("NAME", name).replace("PREDICATE", predicate)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "k.ttir"
            path.write_text(text)
            printed = ir.parse_mlir_module(str(path), context).str_nodebug()
        ours = code_hash(Kernel(name, printed, (("x", "*i32"),), {}))
        assert exported(SimpleNamespace(asm={"ttir": text}), target) == ours
        hashes.append(ours)
    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2]
