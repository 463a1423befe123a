"""The knob convention of kernel modules: literal `CONFIG` with present values, `SPACE` with the allowed ones, `HINTS` to try first.

    CONFIG = {"BLOCK": 1024, "num_warps": 4}
    SPACE = {"BLOCK": [256, 512, 1024, 2048], "num_warps": [1, 2, 4, 8, 16]}

The module's entry reads `CONFIG` at every call. Both are read from the source without running it, so a configuration is data:
the tracer sets `CONFIG` before it calls the entry, tuning chooses from `SPACE`, export writes a verified `CONFIG` back.
A key of `CONFIG` without `SPACE` is fixed; a module without `CONFIG` has no knobs. `HINTS`, where a module has it, lists configurations
(or parts of them) that are worth trying before others, such as those an author found by hand.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evo.records import Configuration, KnobValue
from evo.syntax import module_tree

MAX_KNOBS = 32
MAX_CHOICES = 64
MAX_HINTS = 64
MAX_TEXT = 200


@dataclass(frozen=True)
class Knobs:
    """What a module declares: `default` assigns every knob, `space` lists the choices of those that may vary, `hints` are configurations
    within it to try first."""

    default: Configuration
    space: Mapping[str, tuple[KnobValue, ...]]
    hints: tuple[Configuration, ...] = ()

    @property
    def size(self) -> int:
        """Number of configurations in the space."""
        size = 1
        for choices in self.space.values():
            size *= len(choices)
        return size


def read_knobs(source: str) -> Knobs:
    """Reads `CONFIG`, `SPACE` and `HINTS` from module source without running it.

    Raises:
        ValueError: The source does not parse, or a declaration is not a literal of the right form; the text says which.
    """
    try:
        tree = module_tree(source)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"the module does not parse: {error}") from error
    config = _checked_config(_literal(tree, "CONFIG", {}))
    space = _checked_space(_literal(tree, "SPACE", {}), config)
    hints = _checked_hints(_literal(tree, "HINTS", []), config, space)
    return Knobs(Configuration(config), space, hints)


def narrowed(knobs: Knobs, allowed: Mapping[str, Sequence[KnobValue]]) -> Knobs:
    """The knobs without choices that a task does not allow; what the module declares stays a choice.

    Args:
        knobs: Of a module.
        allowed: Knob → values, see `Task.knobs`; ``num_warps`` also stands for ``num_warps_2`` and so on.
    """
    space = {}
    for name, choices in knobs.space.items():
        stem, _, number = name.rpartition("_")
        kept = allowed.get(name, allowed.get(stem) if number.isdecimal() else None)
        space[name] = choices if kept is None else tuple(item for item in choices if item in kept or item == knobs.default[name])
    within = (hint for hint in knobs.hints if all(hint[name] in choices for name, choices in space.items()))
    return Knobs(knobs.default, space, tuple(within))


def _literal(tree: ast.Module, name: str, absent: object) -> object:
    found: list[ast.expr] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            found.append(node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name and node.value:
            found.append(node.value)
    if not found:
        return absent
    if len(found) > 1:
        raise ValueError(f"{name} is assigned {len(found)} times; assign it once, at module level")
    try:
        return ast.literal_eval(found[0])
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:  # e.g. a list as a key, or nested too deep
        raise ValueError(f"{name} must be a literal {type(absent).__name__}, with names as keys and plain values") from error


_PLAIN = "int (64 bits), finite float, bool or short printable str"


def _is_plain(value: object) -> bool:
    """Whether a value survives JSON, a store and being written into a module."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return isinstance(value, str) and value.isprintable() and len(value) <= MAX_TEXT


def _shown(value: object) -> str:
    try:
        return ascii(value)[:100]
    except ValueError:  # Python does not write integers of thousands of digits
        return f"a {type(value).__name__} too large to show"


def _checked_config(value: object) -> dict[str, KnobValue]:
    if not isinstance(value, dict) or len(value) > MAX_KNOBS:
        raise ValueError(f"CONFIG must be a dict of at most {MAX_KNOBS} knobs, given {type(value).__name__}")
    for key, item in value.items():
        if not isinstance(key, str) or not key.isidentifier() or not _is_plain(item):
            raise ValueError(f"CONFIG[{key!a}] = {_shown(item)}: keys are identifiers, values {_PLAIN}")
    return value


def _checked_space(value: object, config: Mapping[str, KnobValue]) -> dict[str, tuple[KnobValue, ...]]:
    if not isinstance(value, dict):
        raise ValueError(f"SPACE must be a dict of lists, given {type(value).__name__}")
    space: dict[str, tuple[KnobValue, ...]] = {}
    for key, choices in value.items():
        if key not in config:
            raise ValueError(f"SPACE has {_shown(key)}, which CONFIG lacks; knobs: {', '.join(config) or 'none'}")
        if not isinstance(choices, list | tuple) or not 1 <= len(choices) <= MAX_CHOICES:
            raise ValueError(f"SPACE[{key!r}] must list 1 to {MAX_CHOICES} choices, given {_shown(choices)}")
        if not all(map(_is_plain, choices)):
            raise ValueError(f"SPACE[{key!a}]: choices are {_PLAIN}, given {', '.join(map(_shown, choices))}")
        if config[key] not in choices:
            raise ValueError(f"CONFIG[{key!r}] = {config[key]!r} is not among SPACE[{key!r}] = {list(choices)!r}")
        space[key] = tuple(dict.fromkeys(choices))
    return space


def _checked_hints(
    value: object, config: Mapping[str, KnobValue], space: Mapping[str, tuple[KnobValue, ...]]
) -> tuple[Configuration, ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_HINTS:
        raise ValueError(f"HINTS must be a list of at most {MAX_HINTS} configurations, given {_shown(value)}")
    hints = []
    for number, hint in enumerate(value):
        if not isinstance(hint, dict):
            raise ValueError(f"HINTS[{number}] must be a dict of knobs to values, given {_shown(hint)}")
        for key, item in hint.items():
            if item not in space.get(key, (config[key],) if key in config else ()):
                raise ValueError(f"HINTS[{number}] sets {_shown(key)} to {_shown(item)}, which SPACE does not allow")
        hints.append(Configuration({**config, **hint}))
    return tuple(dict.fromkeys(hints))
