"""Replaces `@triton.autotune` by knobs: what its configurations assign becomes `CONFIG`, `SPACE` and `HINTS`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import libcst as cst
import libcst.matchers as m

from evo.syntax import expression_tree, module_tree
from operators.edits import edited, unused, with_argument, with_hints, with_knob, with_part
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.configurations import ConfigurationList, read_configurations, read_of
from operators.rewrite.sizes import choices_beside
from operators.source import Kernel, Launch, NotApplicableError, Source, code, find, knob_names

MAX_HINTS = 16
"""Configurations kept as hints, the first ones: a tuner tries few, and authors put what they trust first."""


class UnfoldAutotune(Rewrite):
    """The autotuner's decorator goes; each key of its configurations, `num_warps` and the like become knobs given at the launch.

    The first configuration is the default, the others are hints. The space is the product of what the configurations use, tile
    sizes and warps filled up with the powers of two between and beside them, so tuning may find combinations that the author did not
    list. Tuning works per case, which is what the autotuner's `key` was for; `reset_to_zero` and `restore_value` only undo what
    its benchmarking does. Configurations with a `pre_hook` run code before every launch and are left alone.
    """

    name = "unfold_autotune"
    when = "A kernel has an autotuner, which hides its arguments from other rewrites."
    cites = "Triton documentation, triton.autotune."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per autotuned kernel."""
        for kernel in source.kernels.values():
            decorator = _autotuner(kernel)
            if decorator is not None:
                yield Site(
                    f"the autotuner of {kernel.name} is unfolded into knobs", partial(_unfolded, source, kernel, decorator)
                )


@dataclass
class _Names:
    """Knob names of one kernel: parameter or launch option → knob."""

    taken: set[str]
    of: dict[str, str] = field(default_factory=dict)

    def name(self, parameter: str) -> str:
        if parameter not in self.of:
            self.of[parameter] = unused(parameter, self.taken)
            self.taken.add(self.of[parameter])
        return self.of[parameter]


def _autotuner(kernel: Kernel) -> cst.Decorator | None:
    for decorator in kernel.node.decorators:
        call = decorator.decorator
        if isinstance(call, cst.Call) and code(call.func) in ("triton.autotune", "autotune"):
            return decorator
    return None


def _unfolded(source: Source, kernel: Kernel, decorator: cst.Decorator) -> cst.Module:
    call = expression_tree(code(decorator.decorator).strip())
    assert isinstance(call, ast.Call)
    configurations = read_configurations(module_tree(source.module.code), call)
    launches = [launch for launch in source.launches if launch.kernel == kernel.name]
    if not launches:
        raise NotApplicableError(f"{kernel.name} has no launch with plain arguments")
    _check_uses(source, kernel, launches)
    names = _Names(set(knob_names(source.module)))
    edits: list[tuple[cst.CSTNode, object]] = []
    for launch in launches:
        given = [key for key in configurations.keys if key in launch.arguments]
        if given:
            raise NotApplicableError(f"the launch of {kernel.name} gives {given[0]} beside the autotuner")
        edits.append((launch.call, partial(_with_knobs, configurations=configurations, names=names)))
    kept = [item for item in kernel.node.decorators if item is not decorator]
    edits.append((kernel.node, with_part(decorators=kept)))
    module = edited(source.module, edits)  # type: ignore[arg-type]
    for key in configurations.keys:
        values = configurations.values(key)
        choices = choices_beside(key, values, dots="dot" in kernel.uses)
        module = with_knob(module, names.name(key), configurations.first[key], list(choices))
    hints = [{names.name(key): value for key, value in item.items()} for item in configurations.all[1 : MAX_HINTS + 1]]
    return with_hints(module, hints)


def _with_knobs(call: cst.Call, configurations: ConfigurationList, names: _Names) -> cst.Call:
    for key in configurations.keys:
        call = with_argument(call, key, read_of(names.name(key), key, configurations.values(key)))
    return call


def _check_uses(source: Source, kernel: Kernel, launches: Sequence[Launch]) -> None:
    """The kernel's name may be used for launches alone: `kernel.best_config` and the like need the autotuner."""
    uses = find(source.module, cst.Name, m.Name(kernel.name))
    plain = {id(cst.ensure_type(launch.call.func, cst.Subscript).value) for launch in launches} | {id(kernel.node.name)}
    if any(id(use) not in plain for use in uses):
        raise NotApplicableError(f"{kernel.name} is used otherwise than in launches whose arguments can be read")
