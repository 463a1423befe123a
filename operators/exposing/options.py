"""Makes launch options knobs: `num_warps`, `num_stages`, and those that only one backend has or that are asked for."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from operators.exposing.draft import Draft, Knob, Place
from operators.exposing.reading import KernelText, LaunchText, bindings, parameter_of, reads_config
from operators.exposing.values import number
from operators.rewrite.sizes import OPTIONS, STAGES, WARPS
from operators.source import NotApplicableError

OPTIONAL = ("maxnreg", "num_ctas")
"""Options that are exposed where asked for, or where a launch gives them: they help few kernels and multiply every space."""


@dataclass(frozen=True)
class Option:
    """A launch option: `default` is what the backend takes for launches that do not say, 0 with `ruled` for None."""

    name: str
    default: int
    choices: tuple[int, ...]
    ruled: bool = False


def options_of(kernel: KernelText, launches: Sequence[LaunchText], target: str, optional: Collection[str]) -> Iterator[Option]:
    """The options that can matter to a kernel on a target."""
    backend, _, arch = target.partition(":")
    hip = backend == "hip"
    wanted = {*optional, *(name for launch in launches for name in OPTIONAL if name in launch.given)}
    yield Option("num_warps", 4, WARPS)
    if kernel.loops:
        yield Option("num_stages", 2 if hip else 3, STAGES)
    if hip:
        yield Option("waves_per_eu", 0, OPTIONS["waves_per_eu"])
        if kernel.dots:
            yield Option("matrix_instr_nonkdim", 0, OPTIONS["matrix_instr_nonkdim"])
            if arch != "gfx950":  # it ignores kpack
                yield Option("kpack", 1, OPTIONS["kpack"])
    elif "maxnreg" in wanted:
        yield Option("maxnreg", 0, (0, 64, 96, 128, 168, 255), ruled=True)
    if not hip and "num_ctas" in wanted and arch.isdecimal() and int(arch) >= 90:
        yield Option("num_ctas", 1, (1, 2, 4))


def expose_option(draft: Draft, kernel: KernelText, option: Option) -> None:
    """Makes an option of a kernel a knob, one for all launches that give it the same.

    Raises:
        NotApplicableError: A launch does not show what it gives; those before it keep their knob.
    """
    if (kernel.name, option.name) in draft.shared:  # the autotuner gave it
        return
    if option.name in kernel.computed:
        if reads_config(kernel.computed[option.name], ()):
            return
        _in_heuristics(draft, kernel, option)
        return
    reasons: list[str] = []
    for launch in draft.module.launches_of(kernel):
        try:
            _at_launch(draft, launch, option)
        except NotApplicableError as error:
            reasons.append(str(error))
    if reasons:
        raise NotApplicableError(reasons[0])


def _at_launch(draft: Draft, launch: LaunchText, option: Option) -> None:
    kernel, node = launch.kernel, launch.given.get(option.name)
    if node is not None and reads_config(node, launch.scopes):
        return
    if node is None and (launch.opaque or option.name in kernel.parameters):
        raise NotApplicableError(f"a launch of {kernel.name} does not show its {option.name}")
    if option.name in launch.positional:  # a parameter of that name: the option itself stays what it was
        raise NotApplicableError(f"{option.name} of {kernel.name} is also a parameter that is given by position")
    value = option.default if node is None else _constant(draft, launch, node)
    ruled = value is None or (option.ruled and value == 0)
    key = (kernel.name, option.name, "rule" if value is None else value)
    known = draft.shared.get(key)
    knob = known or draft.new_name(option.name)
    if node is None:
        text = f'CONFIG["{knob}"]'
        draft.argument(launch.call, option.name, f"{text} or None" if ruled else text)
    elif draft.shared.get((launch.kernel.name, option.name, id(node))) is None:
        draft.claim([Place(node, wrapped=value is None)], knob)
        draft.shared[launch.kernel.name, option.name, id(node)] = knob
    if known is None:
        choices = {*option.choices, 0} if ruled else {*option.choices, value} - ({0} if option.ruled else set())
        draft.declare(
            Knob(knob, 0 if ruled else value or 0, tuple(sorted(c for c in choices if c is not None)), kernel.name, ruled)
        )
        draft.shared[key] = knob


def _constant(draft: Draft, launch: LaunchText, node: ast.expr) -> int | None:
    """The value of an option that is a number, or a name for one and the same number; None for one that follows a rule."""
    if isinstance(node, ast.Name):
        for scope in launch.scopes:
            if parameter_of(scope, node.id):
                return None
            found = bindings(scope, node.id)
            if found:
                return number(found[0]) if len(found) == 1 else None
        found = bindings(draft.module.tree, node.id)
        return number(found[0]) if len(found) == 1 else None
    return number(node)


def _in_heuristics(draft: Draft, kernel: KernelText, option: Option) -> None:
    rule = kernel.computed[option.name]
    knob = draft.new_name(option.name)
    if isinstance(rule, ast.Lambda):
        draft.claim([Place(rule.body, wrapped=True)], knob)
    else:
        draft.override(rule, knob)
    draft.declare(Knob(knob, 0, tuple(sorted({0, *option.choices})), kernel.name, ruled=True))
    draft.shared[kernel.name, option.name] = knob
