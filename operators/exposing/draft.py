"""Collects edits of a module's text and the knobs they read, and writes both down at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evo.knobs import MAX_HINTS, MAX_KNOBS, read_knobs
from evo.records import KnobValue
from evo.syntax import module_tree
from operators.edits import unused
from operators.exposing.reading import ModuleText
from operators.source import NotApplicableError


@dataclass(frozen=True)
class Knob:
    """A knob to declare. `default` 0 with `ruled` means: as the author's rule says."""

    name: str
    default: KnobValue
    choices: tuple[KnobValue, ...]
    kernel: str
    ruled: bool = False

    @property
    def line(self) -> str:
        """For people."""
        default = "the author's rule" if self.ruled else repr(self.default)
        values = [value for value in self.choices if not (self.ruled and value == 0)]
        shown = f"{values[0]!r} … {values[-1]!r}" if len(values) > 3 else ", ".join(map(repr, values))
        return f"{self.name} of kernel {self.kernel}: {default} → {shown}"


@dataclass(frozen=True)
class Place:
    """An expression that becomes a read of a knob; `wrapped`: only where the knob is not 0, else it stays what it is. `less` is taken
    from it, as in `(n + 511) // 512`."""

    node: ast.expr
    wrapped: bool
    less: int = 0


_CLOSING, _INSERTION, _OPENING, _REPLACEMENT = range(4)
"""What comes first where pieces meet at one place."""


@dataclass(frozen=True)
class _Piece:
    first: int
    last: int
    rank: int
    order: int
    text: str


@dataclass
class Draft:
    """Edits of one module. Places are claimed once: an expression feeds one knob."""

    module: ModuleText
    knobs: dict[str, Knob] = field(default_factory=dict)
    hints: list[Mapping[str, KnobValue]] = field(default_factory=list)
    shared: dict[object, str] = field(default_factory=dict)
    """Knobs by what they stand for, so that a second launch finds the one of the first."""

    def __post_init__(self) -> None:
        self.declared = read_knobs(self.module.text)
        self._edits: dict[tuple[int, int], str] = {}
        self._wraps: dict[tuple[int, int], str] = {}
        self._inserted: dict[int, list[str]] = {}

    @property
    def full(self) -> bool:
        """No further knob can be declared."""
        return len(self.declared.default) + len(self.knobs) >= MAX_KNOBS

    def new_name(self, wanted: str) -> str:
        """A knob name that is not taken.

        Raises:
            NotApplicableError: There are too many knobs.
        """
        if self.full:
            raise NotApplicableError(f"{wanted} would be more than {MAX_KNOBS} knobs")
        return unused(wanted, {*self.declared.default, *self.knobs})

    def claim(self, places: Sequence[Place], knob: str) -> None:
        """Turns expressions into reads of a knob.

        Raises:
            NotApplicableError: One of them feeds another knob already; then none is changed.
        """
        spans = [self.module.span(place.node) for place in places]
        for (first, last), place in zip(spans, places, strict=True):
            others = [(a, b) for a, b in (*self._edits, *self._wraps) if a < last and first < b]
            inside = [(a, b) for a, b in others if place.wrapped and first <= a and b <= last and (a, b) != (first, last)]
            around = [(a, b) for a, b in others if (a, b) in self._wraps and a <= first and last <= b and (a, b) != (first, last)]
            if len(inside) + len(around) < len(others):
                raise NotApplicableError(f"`{self.module.of(place.node)[:40]}` feeds another knob already")
        for span, place in zip(spans, places, strict=True):
            read = f'CONFIG["{knob}"]'
            (self._wraps if place.wrapped else self._edits)[span] = f"({read} - {place.less})" if place.less else read

    def insert(self, place: int, text: str) -> None:
        """Puts text before a byte of the module."""
        self._inserted.setdefault(place, []).append(text)

    def override(self, rule: ast.expr, knob: str) -> None:
        """Lets a knob come before a function of `@triton.heuristics` that has a name.

        Raises:
            NotApplicableError: It is no name.
        """
        if not isinstance(rule, ast.Name | ast.Attribute):
            raise NotApplicableError(f"`{self.module.of(rule)[:40]}` is no plain function to put {knob} before")
        self._edits[self.module.span(rule)] = f'lambda args: CONFIG["{knob}"] or {self.module.of(rule)}(args)'

    def remove(self, first: int, last: int) -> None:
        """Takes bytes away."""
        self._edits[first, last] = ""

    def argument(self, call: ast.Call, name: str, text: str) -> None:
        """Adds a keyword argument to a call."""
        _, end = self.module.span(call)
        _, start = self.module.span(call.func)
        last = max((self.module.span(item)[1] for item in (*call.args, *call.keywords)), default=start)
        rest = re.sub(rb"#[^\r\n]*", lambda found: b" " * len(found.group()), self.module.data[last : end - 1])
        place = last + len(rest.rstrip(b" \t\r\n\\"))
        if b"," in rest:
            self.insert(place, f" {name}={text},")
        else:
            first = not (call.args or call.keywords or place in self._inserted)
            self.insert(place, f"{name}={text}" if first else f", {name}={text}")

    def declare(self, knob: Knob) -> None:
        """Adds a knob whose reads are in the draft."""
        self.knobs[knob.name] = knob

    def rendered(self, knobs: Mapping[str, Knob]) -> str:
        """The text with all edits, and the knobs declared."""
        data = self.module.data
        pieces = [_Piece(first, last, _REPLACEMENT, 0, text) for (first, last), text in self._edits.items()]
        for (first, last), text in self._wraps.items():
            simple = data[first:last].decode().isidentifier()
            opened, closed = (f"({text} or ", ")") if simple else (f"({text} or (", "))")
            pieces.append(_Piece(first, first, _OPENING, first - last, opened))  # of two that start alike the longer is outside
            pieces.append(_Piece(last, last, _CLOSING, last - first, closed))
        for place, texts in self._inserted.items():
            pieces.append(_Piece(place, place, _INSERTION, 0, "".join(texts)))
        out, at = [], 0
        for piece in sorted(pieces, key=lambda item: (item.first, item.rank, item.order)):
            if piece.first >= at:
                out += [data[at : piece.first], piece.text.encode()]
                at = piece.last
        return self._declared(b"".join([*out, data[at:]]).decode(), knobs)

    def _declared(self, text: str, knobs: Mapping[str, Knob]) -> str:
        text = _with_entries(text, "CONFIG", {knob.name: repr(knob.default) for knob in knobs.values()})
        text = _with_entries(text, "SPACE", {knob.name: repr(list(knob.choices)) for knob in knobs.values()})
        allowed = [hint for hint in self.hints if all(value in knobs[name].choices for name, value in hint.items())]
        return _with_hints(text, allowed[: MAX_HINTS - len(self.declared.hints)])


def _assignment(text: str, name: str) -> tuple[ModuleText, ast.expr] | None:
    tree = module_tree(text)
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(item, ast.Name) and item.id == name for item in targets):
            value = getattr(node, "value", None)
            if isinstance(value, ast.expr):
                return ModuleText(text, tree), value
    return None


def _with_entries(text: str, variable: str, entries: Mapping[str, str]) -> str:
    """Adds entries to a dict at module level, or the dict where it is absent."""
    if not entries:
        return text
    shown = ", ".join(f'"{key}": {value}' for key, value in entries.items())
    present = _assignment(text, variable)
    if present is None:
        return _with_line(text, f"{variable} = {{{shown}}}", behind="CONFIG" if variable == "SPACE" else "")
    module, value = present
    if not isinstance(value, ast.Dict):
        raise NotApplicableError(f"{variable} is no dict in braces")
    if value.values:
        place, shown = module.span(value.values[-1])[1], f", {shown}"
    else:
        place = module.span(value)[0] + 1
    return (module.data[:place] + shown.encode() + module.data[place:]).decode()


def _with_hints(text: str, hints: Sequence[Mapping[str, KnobValue]]) -> str:
    if not hints:
        return text
    lines = "".join("    " + repr(dict(hint)).replace("'", '"') + ",\n" for hint in hints)
    present = _assignment(text, "HINTS")
    if present is None:
        return _with_line(text, f"HINTS = [\n{lines}]", behind="SPACE")
    module, value = present
    if not isinstance(value, ast.List):
        raise NotApplicableError("HINTS is no list in brackets")
    place = module.span(value.elts[-1])[1] if value.elts else module.span(value)[0] + 1
    return (module.data[:place] + ((",\n" if value.elts else "\n") + lines.rstrip(",\n")).encode() + module.data[place:]).decode()


def _with_line(text: str, line: str, behind: str) -> str:
    """A statement at module level: behind an assignment, else behind the imports at its head."""
    tree = module_tree(text)
    module = ModuleText(text, tree)
    after = next((node for node in tree.body if behind and _assigns(node, behind)), None)
    blank = after is None
    if after is None:
        head = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        documented = tree.body[:1] if ast.get_docstring(tree) is not None else []
        after = (head or documented or [None])[-1]
    place = 0 if after is None else module.line_start((after.end_lineno or after.lineno) + 1)
    place = min(place, len(module.data))
    newline = b"" if place == 0 or module.data[:place].endswith((b"\n", b"\r")) else b"\n"
    added = ("\n" if blank and after is not None else "") + line + "\n"
    return (module.data[:place] + newline + added.encode() + module.data[place:]).decode()


def _assigns(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(item, ast.Name) and item.id == name for item in node.targets)
