"""From the calls that a suite's scripts make to the cases of one task, with one entry for all forms of calls."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evo.errors import TaskError
from evo.suites.tritonbench_files import ENTRY, CallGroup, plain_case
from evo.tasks.base import Argument, Case, TensorSpec

MAX_FORMS = 6
SMALL, TRAINING, HELD_OUT = 3, 3, 4
"""Cases of each kind, at most."""
MAX_SMALL = 1 << 24
MAX_BYTES = 4 << 30
"""Elements of a small case, and bytes of any; larger ones are left out."""


TENSORS_ALONE = """
def tensors_alone(value):
    if isinstance(value, (tuple, list)):
        return tuple(tensors_alone(item) for item in value)
    if isinstance(value, dict):
        return {key: tensors_alone(item) for key, item in value.items()}
    return value if isinstance(value, torch.Tensor) else None
"""
"""Part of an entry whose calls give numbers or objects, too."""


@dataclass(frozen=True)
class Call:
    """One call: its form, its arguments (the form not among them), and whether a measuring script made it."""

    form: int
    arguments: tuple[Argument, ...]
    measured: bool

    @property
    def elements(self) -> int:
        """Of its tensors."""
        return sum(item.numel for item in self.arguments if isinstance(item, TensorSpec))

    @property
    def nbytes(self) -> int:
        """Of its tensors."""
        return sum(item.nbytes for item in self.arguments if isinstance(item, TensorSpec))


@dataclass(frozen=True)
class Composed:
    """The source of an entry that makes every call, and the calls. Where there are several forms, arguments begin with the number of the
    form, and end with None where others take more."""

    entry: str
    calls: tuple[Call, ...]
    forms: int
    most: int

    def case(self, call: Call, name: str, outputs: int = 0) -> Case:
        """The case of a call."""
        if self.forms == 1:
            return plain_case(name, call.arguments, outputs)
        missing = (None,) * (self.most - len(call.arguments))
        return plain_case(name, (call.form, *call.arguments, *missing), outputs)

    def names(self) -> Mapping[Call, str]:
        """Of its calls: the sizes of their tensors, made different."""
        found: dict[Call, str] = {}
        for call in self.calls:
            sizes = ["x".join(map(str, item.shape)) or "scalar" for item in call.arguments if isinstance(item, TensorSpec)]
            name = "_".join(dict.fromkeys(sizes))[:60] or "no_tensors"
            taken = sum(other == name or other.startswith(f"{name}#") for other in found.values())
            found[call] = f"{name}#{taken + 1}" if taken else name
        return found


def composed(groups: Sequence[CallGroup], notes: list[str]) -> Composed:
    """One entry for the groups that a task can say.

    Raises:
        TaskError: There are none.
    """
    usable = [group for group in groups if group.form == "function"]
    for group in groups:
        if group not in usable:
            notes.append(f"calls of {group.label} are left out: it is a module with parameters of its own")
        elif group.backward:
            notes.append(f"of {group.label} the gradients are not judged, only what it returns")
    if not usable:
        raise TaskError(
            "calls of its scripts", given="; ".join(dict.fromkeys(notes)) or "none", allowed="functions of tensors and numbers"
        )
    ranked = sorted(usable, key=lambda group: -len(group.calls))
    if len(ranked) > MAX_FORMS:
        notes.append(f"{len(ranked) - MAX_FORMS} forms of calls are left out, those with the fewest calls")
    kept = [group for group in usable if group in ranked[:MAX_FORMS]]
    calls: dict[Call, None] = {}
    for form, group in enumerate(kept):
        for script, arguments in group.calls:
            call = Call(form, tuple(map(_random, arguments)), script == "perf")
            if call.nbytes <= MAX_BYTES:
                calls.setdefault(call)
    counts = [len(group.calls[0][1]) for group in kept]
    return Composed(_entry(kept, counts), tuple(calls), len(kept), max(counts))


def _random(item: Argument) -> Argument:
    """Ones among the numbers of a test stand for any: a kernel that takes them for granted would pass. No gradient is asked for."""
    if isinstance(item, TensorSpec) and item.requires_grad:
        item = dataclasses.replace(item, requires_grad=False)
    if isinstance(item, TensorSpec) and item.distribution == "ones" and item.dtype.startswith(("float", "bfloat")):
        return dataclasses.replace(item, distribution="uniform", low=0.5, high=1.5)
    return item


def _entry(groups: Sequence[CallGroup], counts: Sequence[int]) -> str:
    if len(groups) == 1 and not groups[0].odd:
        return groups[0].text
    parts = [re.sub(rf"^def {ENTRY}\(", f"def {ENTRY}_{form}(", group.text) for form, group in enumerate(groups)]
    if any(group.odd for group in groups):
        parts = [TENSORS_ALONE, *(_kept(form, group, part) for (form, group), part in zip(enumerate(groups), parts, strict=True))]
    if len(groups) == 1:
        names = _names(counts[0])
        return "\n\n".join([*parts, f"def {ENTRY}({names}):\n    return {ENTRY}_0({names})\n"])
    lines = [f"def {ENTRY}(form, {_names(max(counts))}):"]
    for form, count in enumerate(counts):
        lines += [f"    if form == {form}:", f"        return {ENTRY}_{form}({_names(count)})"]
    return "\n\n".join([*parts, "\n".join(lines) + "\n    raise ValueError(form)\n"])


def _names(count: int) -> str:
    return ", ".join(f"a{place}" for place in range(count))


def _kept(form: int, group: CallGroup, text: str) -> str:
    """A form that gives what is no tensor gives None in place of it."""
    return re.sub(r"^    return (.*)$", r"    return tensors_alone(\1)", text, flags=re.MULTILINE) if group.odd else text


@dataclass(frozen=True)
class Chosen:
    """Calls by what they serve for."""

    small: tuple[Call, ...]
    training: tuple[Call, ...]
    held_out: tuple[Call, ...]


def chosen(calls: Sequence[Call]) -> Chosen:
    """Small ones of each form; scored are sizes of the measuring script, else the largest of the test; others are held out.

    Raises:
        TaskError: None is small.
    """
    tested = sorted((call for call in calls if not call.measured), key=lambda call: call.elements)
    measured = sorted((call for call in calls if call.measured), key=lambda call: call.nbytes)
    small = _small([*tested, *measured])
    if not small:
        given = f"at least {min((call.elements for call in calls), default=0)} elements in every call"
        raise TaskError("small cases", given=given, allowed=f"at most {MAX_SMALL}")
    scored = measured or [call for call in tested if call not in small] or tested[-1:]
    training = _spread(scored, TRAINING)
    rest = [call for call in (*reversed(measured), *reversed(tested)) if call not in small and call not in training]
    return Chosen(tuple(small), tuple(training), tuple(_spread(rest, HELD_OUT)))


def _small(ascending: Sequence[Call]) -> list[Call]:
    fitting = [call for call in ascending if call.elements <= MAX_SMALL]
    first: dict[int, Call] = {}
    for call in fitting:
        first.setdefault(call.form, call)
    found = list(first.values())[:MAX_FORMS]
    return found + [call for call in fitting if call not in found][: max(0, SMALL - len(found))]


def _spread(ascending: Sequence[Call], count: int) -> list[Call]:
    """The last, and others evenly before it."""
    places = sorted({len(ascending) - 1 - round(step * len(ascending) / count) for step in range(count)})
    return [ascending[place] for place in places if place >= 0]
