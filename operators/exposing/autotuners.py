"""Unfolds `@triton.autotune`: what its configurations assign becomes knobs and hints, its decorator goes."""

from __future__ import annotations

import ast

from evo.knobs import MAX_KNOBS
from operators.exposing.draft import Draft, Knob
from operators.exposing.reading import KernelText
from operators.rewrite.configurations import TRITON_DEFAULTS, read_configurations, read_of
from operators.rewrite.sizes import choices_beside
from operators.source import NotApplicableError

MAX_HINTS = 16
"""Configurations of a kernel that are kept as hints: a tuner tries few, and authors put what they trust first."""
ALWAYS = ("num_warps", "num_stages")
"""Given by `triton.Config` even where its author did not, and on a backend with other defaults too."""


def unfold(draft: Draft, kernel: KernelText, target: str) -> None:
    """Unfolds the autotuner of a kernel.

    Raises:
        NotApplicableError: It cannot be read, or the module needs it for more than launches.
    """
    module = draft.module
    if len(kernel.autotuners) > 1:
        raise NotApplicableError(f"{kernel.name} has two autotuners")
    configurations = read_configurations(module.tree, kernel.autotuners[0], target.partition(":")[0])
    launches = module.launches_of(kernel)
    if not launches:
        raise NotApplicableError(f"{kernel.name} has no launch that can be read")
    plain = {id(launch.index.value) for launch in launches}
    if any(isinstance(n, ast.Name) and n.id == kernel.name and id(n) not in plain for n in ast.walk(module.tree)):
        raise NotApplicableError(f"{kernel.name} is used otherwise than in launches, so its autotuner may be needed")
    every = [{**{key: TRITON_DEFAULTS[key] for key in ALWAYS}, **item} for item in configurations.all]
    keys = [
        key for key in dict.fromkeys([*configurations.keys, *ALWAYS]) if key not in kernel.computed
    ]  # heuristics have the last word
    given = [key for launch in launches for key in keys if key in launch.given]
    if given:
        raise NotApplicableError(f"a launch of {kernel.name} gives {given[0]} beside the autotuner")
    if len(draft.declared.default) + len(draft.knobs) + len(keys) > MAX_KNOBS:
        raise NotApplicableError(f"the autotuner of {kernel.name} would make more than {MAX_KNOBS} knobs")
    names: dict[str, str] = {}
    texts: dict[str, str] = {}
    for key in keys:
        names[key] = draft.new_name(key)
        values = list(dict.fromkeys(item[key] for item in every))
        texts[key] = read_of(names[key], key, values)
        draft.declare(Knob(names[key], every[0][key], choices_beside(key, values, dots=kernel.dots), kernel.name))
        draft.shared[kernel.name, key] = names[key]
    for launch in launches:
        for key in keys:
            draft.argument(launch.call, key, texts[key])
    draft.hints += [{names[key]: item[key] for key in keys} for item in every[1 : MAX_HINTS + 1]]
    _without(draft, kernel.autotuners[0])


def _without(draft: Draft, decorator: ast.Call) -> None:
    """Takes the lines of a decorator away, with a comment behind it."""
    module = draft.module
    draft.remove(module.line_start(decorator.lineno), module.line_start((decorator.end_lineno or decorator.lineno) + 1))
