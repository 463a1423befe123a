"""The suites TritonBench-G, TritonBench-T and TritonBench-revised, from checkouts that the user names.

A file of G (and of the revised set, of the same layout) is a Triton kernel with a test: the kernel is where a search starts and what it is
judged by, on inputs drawn anew, in the structure of what it returns and updates, at the sizes of the test and of the script that measures.
A file of T is an operator in PyTorch with a test: kernels start from what torch.compile makes of it. What a test compares (often printed
text that is empty, or shapes alone) plays no part. Instructions become the descriptions that a model may be given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from evo.errors import TaskError, WorkerDied
from evo.suites.base import Against, Described, Problem, Suite, Tools, digest_of, problem_file
from evo.suites.calls import Chosen, Composed, chosen, composed
from evo.suites.families import family_of
from evo.suites.launched import Launched, launched
from evo.suites.specs import case_to_json, cases_from_json, literal
from evo.suites.torch_reference import Reference, mutated_by, outputs_of, torch_reference
from evo.suites.triton_reference import TritonReference
from evo.suites.tritonbench_files import ENTRY, SuiteFile, call_groups, module_text, read_file, suite_files
from evo.tasks.base import Case, Task, Tolerance
from evo.tasks.draws import Variation

HARMLESS = frozenset(
    {Variation.TIMES_3, Variation.TIMES_0_01, Variation.POSITIVE, Variation.NEGATED, Variation.SPARSE, Variation.FILLED}
)
"""Inputs on which kernels that were written for others' data still mean something."""
SUM_OF_TIMES = (
    "the sum of the reference's times over the sum of ours, over all measured sizes; the suite's mean is over successes alone"
)


class _TritonBench(Suite):
    """What the sets have in common.

    Attributes:
        folder, perf: Of the files and of the scripts that measure, relative to the checkout.
        instructions: A JSON list with an instruction per ``file``.
        by_pytest: Whether tests, and what measures, are written for pytest.
    """

    speedup = SUM_OF_TIMES
    folder: ClassVar[str]
    perf: ClassVar[str]
    instructions: ClassVar[str]
    by_pytest: ClassVar[bool] = False

    def problems(self, root: Path) -> tuple[Problem, ...]:
        """See `Suite`."""
        found = []
        for path in suite_files(root / self.folder):
            if path.stem != "__init__":
                family, gain = family_of(path.stem)
                name = f"{self.name.replace('-', '_')}_{path.stem}"
                found.append(Problem(name, path.stem, f"{self.folder}/{path.name}", family, gain))
        return tuple(found)

    def _recorded(self, root: Path, problem: Problem, tools: Tools, notes: list[str]) -> tuple[SuiteFile, Composed]:
        file = read_file(root / problem.file)
        notes += [f"{module} is gone from Triton: none of its pruning of configurations is done" for module in file.gone]
        perf = root / self.perf / f"{file.name}_perf.py"
        text = perf.read_text(encoding="utf-8") if perf.is_file() else ""
        launching = self.against is Against.KERNEL
        try:
            answer = tools.recording.answer(
                file.kernels, file.test, perf=text, name=file.name, launching=launching, by_pytest=self.by_pytest
            )
        except WorkerDied as error:
            raise TaskError(problem.file, given=f"its scripts end their process: {error.reason}") from error
        if answer["module"]:
            raise TaskError(
                problem.file, given=_first_line(answer["module"]), action="it does not import with this torch and Triton"
            )
        groups, unread = call_groups(answer)
        notes += [f"a call of {label} is left out: it takes {why}" for label, why in dict.fromkeys(unread)]
        for script, words in (("driver", "its test"), ("perf", "the script that measures it")):
            if answer[script]:
                notes.append(f"{words} ended early: {_first_line(answer[script])}")
        if not text and not self.by_pytest:
            notes.append("no script measures it: scored are the largest sizes of its test")
        if not groups:
            raise TaskError(
                problem.file, given="; ".join(notes) or "a test that calls nothing", allowed="calls with tensors and numbers"
            )
        return file, composed(groups, notes)

    def _instruction(self, root: Path, problem: Problem) -> str:
        path = root / self.instructions
        if not path.is_file():
            return ""
        name = Path(problem.file).name
        listed: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        return next((self._words(item) for item in listed if item.get("file") == name), "")

    def _words(self, item: Mapping[str, Any]) -> str:
        return " ".join(str(item.get("simp_instru", "")).split())

    def _text(self, problem: Problem, function: str, root: Path, spec: Mapping[str, Any]) -> str:
        return (
            f'"""{problem.title} of {self.title} as a task."""\n\nfrom evo.suites.tritonbench import {function}\n\n'
            f"TASK = {function}(\n    __file__,\n    {problem.file!r},\n    {digest_of(root / problem.file)!r},\n    {literal(spec)},\n)\n"
        )


class TritonBenchG(_TritonBench):
    """TritonBench-G."""

    name = "tritonbench-g"
    title = "TritonBench-G"
    against = Against.KERNEL
    folder = "data/TritonBench_G_v1"
    perf = "performance_metrics/perf_G/golden_metrics"
    instructions = "data/TritonBench_G_v1.json"

    def describe(self, root: Path, problem: Problem, tools: Tools) -> Described:
        """See `Suite`."""
        notes: list[str] = []
        file, calls = self._recorded(root, problem, tools, notes)
        source = module_text(file.kernels, calls.entry)
        known = launched(source, calls, chosen(calls.calls), tools.bench, notes)
        about = self._instruction(root, problem) or f"What {ENTRY} of the starting kernel computes."
        spec = {
            "name": problem.name,
            "description": f"{about}\n\nThe entry {ENTRY} calls it as the suite's scripts do.",
            "entry": calls.entry,
            "kind": problem.family,
            "cases": _cases(known),
            "mutates": list(known.mutates),
            "sharing": sorted(map(list, known.sharing)),
            "operators": sorted(known.operators),
            "products": "tf32" if "tl.dot" in file.kernels else "float32",
        }
        return Described(self._text(problem, "kernel_task", root, spec), tuple(dict.fromkeys(notes)))


class TritonBenchRevised(TritonBenchG):
    """TritonBench-revised, which GEAK's evaluator holds."""

    name = "tritonbench-revised"
    title = "TritonBench-revised"
    folder = "geak_eval/data/TritonBench/data/TritonBench_G_v1"
    perf = "geak_eval/data/TritonBench/performance_metrics/perf_G/golden_metrics"
    instructions = "geak_eval/data/TritonBench/data/TritonBench_G_v1.json"


class TritonBenchT(_TritonBench):
    """TritonBench-T."""

    name = "tritonbench-t"
    title = "TritonBench-T"
    against = Against.TORCH
    generated = True
    folder = "data/TritonBench_T_v1"
    perf = "performance_metrics/perf_T/golden_metrics"
    instructions = "data/TritonBench_T_v1.jsonl"

    def describe(self, root: Path, problem: Problem, tools: Tools) -> Described:
        """See `Suite`."""
        notes: list[str] = []
        file, calls = self._recorded(root, problem, tools, notes)
        reference = torch_reference(module_text(file.kernels, calls.entry), ENTRY)
        picked, mutates = _unmixed(calls, reference, problem, notes)
        names = calls.names()
        cases = {
            kind: [case_to_json(calls.case(call, names[call], outputs_of(reference, calls.case(call, "it")))) for call in group]
            for kind, group in vars(picked).items()
        }
        cases["small"] = [{**case, "name": f"small_{case['name']}"} for case in cases["small"]]
        spec = {
            "name": problem.name,
            "description": self._instruction(root, problem) or f"What the PyTorch function {problem.title} computes.",
            "entry": calls.entry,
            "kind": problem.family,
            "cases": cases,
            "mutates": list(mutates),
        }
        return Described(self._text(problem, "function_task", root, spec), tuple(dict.fromkeys(notes)))

    def _words(self, item: Mapping[str, Any]) -> str:
        return " ".join(f"{item.get('description', '')} {item.get('func_inputs', '')}".split())


def kernel_task(task_file: str, file: str, digest: str, spec: Mapping[str, Any]) -> Task:
    """The task of a Triton kernel that is its own reference; what task files call.

    Raises:
        TaskError: The file is missing or changed.
    """
    source = module_text(read_file(problem_file(task_file, file, digest)).kernels, spec["entry"])
    sharing = frozenset((one, other) for one, other in spec["sharing"])
    return Task(
        **_common(spec),
        reference=TritonReference(source, ENTRY, spec["mutates"], sharing),
        starting_kernels=(source,),
        tolerance=Tolerance(products=spec["products"]),
        oracle="reference",
        variations=HARMLESS,
        allowed_operators=frozenset(spec["operators"]),
    )


def function_task(task_file: str, file: str, digest: str, spec: Mapping[str, Any]) -> Task:
    """The task of an operator in PyTorch; what task files call.

    Raises:
        TaskError: The file is missing or changed.
    """
    source = module_text(read_file(problem_file(task_file, file, digest)).kernels, spec["entry"])
    oracle = spec.get("oracle", "pytorch64")
    return Task(**_common(spec), reference=torch_reference(source, ENTRY), starting_kernels=(), oracle=oracle)


def _unmixed(calls: Composed, reference: Reference, problem: Problem, notes: list[str]) -> tuple[Chosen, tuple[int, ...]]:
    """Calls for each purpose, and what they update: forms that update an argument are left out where others do not."""
    picked = chosen(calls.calls)
    forms = {call.form: [calls.case(other, "it") for other in picked.small if other.form == call.form] for call in picked.small}
    updating = {form for form, cases in forms.items() if mutated_by(reference, cases, problem.file)}
    if not updating or updating == set(forms):
        return picked, mutated_by(reference, [case for cases in forms.values() for case in cases], problem.file)
    notes.append(f"{len(updating)} forms of calls are left out: they update an argument, which others do not")
    return chosen([call for call in calls.calls if call.form in forms and call.form not in updating]), ()


def _common(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": spec["name"],
        "description": spec["description"],
        "entry": ENTRY,
        "kind": spec["kind"],
        "mutates": tuple(spec["mutates"]),
        **{f"{kind}_cases": _kept(spec, kind) for kind in ("small", "training", "held_out")},
    }


def _kept(spec: Mapping[str, Any], kind: str) -> tuple[Case, ...]:
    return tuple(case for case in cases_from_json(spec["cases"][kind]) if case.name not in spec.get("left_out", ()))


def _cases(known: Launched) -> dict[str, list[dict[str, Any]]]:
    return {kind: [case_to_json(case) for case in getattr(known, kind)] for kind in ("small", "training", "held_out")}


def _first_line(text: str) -> str:
    return " ".join(text.split())[:300]
