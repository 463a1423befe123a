"""Edits of kernel modules that keep comments and layout: replace, append, declare a knob."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import libcst as cst
import libcst.matchers as m

from evo.knobs import MAX_KNOBS, read_knobs
from evo.records import KnobValue
from evo.syntax import expression_tree
from operators.source import NotApplicableError, code, find, knob_names

Edit = Callable[[Any], Any]
"""Makes a node's replacement from the node as it is after edits below it."""


class _Replacer(cst.CSTTransformer):
    def __init__(self, edits: Mapping[int, Edit]) -> None:
        super().__init__()
        self._edits = edits

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        edit = self._edits.get(id(original_node))
        return updated_node if edit is None else edit(updated_node)


def _then(first: Edit, second: Edit) -> Edit:
    return lambda node: second(first(node))


def instead(text: str) -> Edit:
    """The edit that puts an expression in a node's place."""
    return lambda _: cst.parse_expression(text)


def with_part(**parts: Any) -> Edit:
    """The edit that changes attributes of a node."""
    return lambda node: node.with_changes(**parts)


def edited(root: Any, edits: Iterable[tuple[cst.CSTNode, Edit]]) -> Any:
    """A copy of `root` in which each named node, with edits below it done, is replaced by what its edit returns."""
    table: dict[int, Edit] = {}
    for node, edit in edits:
        first = table.get(id(node))
        table[id(node)] = edit if first is None else _then(first, edit)
    return root.visit(_Replacer(table))


def replaced(root: Any, old: str, new: str) -> Any:
    """A copy of `root` with every expression that reads like `old` replaced."""
    target, kind = _dump(old), type(cst.parse_expression(old))
    alike = [node for node in find(root, kind) if _dump(code(node)) == target]
    return edited(root, [(node, lambda _: expression(new)) for node in alike])


def _dump(text: str) -> str:
    return ast.dump(expression_tree(f"({text.strip()}\n)"))  # it may be part of an expression that spans several lines


def expression(text: str) -> cst.BaseExpression:
    """Parses an expression, with parentheses around operators so that it can stand anywhere."""
    node = cst.parse_expression(text)
    if isinstance(node, cst.BinaryOperation | cst.Comparison | cst.BooleanOperation | cst.IfExp | cst.UnaryOperation):
        return cst.parse_expression(f"({text})") if not node.lpar else node
    return node


def appended(items: Sequence[Any], item: Any) -> list[Any]:
    """Arguments, parameters or dict elements with one more at the end, separated the way the others are."""
    if not items:
        return [item]
    last = items[-1]
    comma = items[-2].comma if len(items) > 1 else None
    if not isinstance(comma, cst.Comma) or "#" in code(comma):
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    padding = next((name for name in ("whitespace_after_arg", "whitespace_after_param") if hasattr(last, name)), None)
    if padding is not None:
        item = item.with_changes(**{padding: getattr(last, padding)})
        last = last.with_changes(**{padding: cst.SimpleWhitespace("")})
    return [*items[:-1], last.with_changes(comma=comma), item.with_changes(comma=last.comma)]


def with_argument(call: cst.Call, name: str, text: str) -> cst.Call:
    """A call with one more keyword argument."""
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return call.with_changes(args=appended(call.args, cst.Arg(cst.parse_expression(text), cst.Name(name), equal=equal)))


def with_parameter(function: cst.FunctionDef, name: str, *, constexpr: bool) -> cst.FunctionDef:
    """A kernel with one more parameter at the end."""
    parameters = function.params.params
    new = cst.Param(cst.Name(name))
    if constexpr:
        new = new.with_changes(annotation=cst.Annotation(cst.parse_expression("tl.constexpr")))
    if parameters and parameters[-1].default is not None:  # Python demands a default after a default; launches always give it
        new = new.with_changes(default=cst.Name("False") if constexpr else cst.Integer("0"))
    return function.with_changes(params=function.params.with_changes(params=appended(parameters, new)))


def without_comments(statement: Any) -> Any:
    """A copy of a statement for a second place."""
    if isinstance(statement, cst.SimpleStatementLine):
        statement = statement.with_changes(trailing_whitespace=cst.TrailingWhitespace())
    return statement.with_changes(leading_lines=[])


def unused(wanted: str, taken: Iterable[str]) -> str:
    """`wanted`, or with the first number that makes it new."""
    names = set(taken)
    return next(name for name in (wanted, *(f"{wanted}_{i}" for i in range(2, len(names) + 3))) if name not in names)


def with_knob(module: cst.Module, name: str, default: KnobValue, choices: Sequence[KnobValue]) -> cst.Module:
    """A module whose `CONFIG` and `SPACE` declare one more knob; both are created where absent.

    Raises:
        NotApplicableError: The module has the knob already, or too many.
    """
    knobs = knob_names(module)
    if name in knobs or len(knobs) >= MAX_KNOBS:
        raise NotApplicableError(f"knob {name} cannot be added to {', '.join(knobs)}")
    for variable, value in (("CONFIG", repr(default)), ("SPACE", repr(list(choices)))):
        element = cst.DictElement(cst.SimpleString(f'"{name}"'), cst.parse_expression(value))
        table = knob_table(module, variable)
        if table is None:
            module = _declared(module, variable, code(cst.Dict([element])))
        else:
            module = edited(module, [(table, with_part(elements=appended(table.elements, element)))])
    return module


def with_hints(module: cst.Module, hints: Sequence[Mapping[str, KnobValue]]) -> cst.Module:
    """A module that declares configurations worth trying first, beside those it declares already; see `evo.knobs`."""
    if not hints:
        return module
    known = [dict(hint) for hint in read_knobs(module.code).hints]
    text = "HINTS = [\n" + "".join(f"    {hint!r},\n".replace("'", '"') for hint in [*known, *hints]) + "]\n"
    statement = cst.parse_statement(text)
    lines = [line for line in module.body if not _assigns(line, "HINTS")]
    place = 1 + max(
        (index for index, line in enumerate(lines) if _assigns(line, "CONFIG") or _assigns(line, "SPACE")), default=-1
    )
    return module.with_changes(body=[*lines[:place], statement, *lines[place:]])


def _assigns(line: cst.CSTNode, name: str) -> bool:
    return m.matches(line, m.SimpleStatementLine([m.Assign(targets=[m.AssignTarget(m.Name(name))])]))


def knob_table(module: cst.Module, variable: str) -> cst.Dict | None:
    """The dict literal assigned to `CONFIG` or `SPACE`."""
    targets = m.Assign(targets=[m.AssignTarget(m.Name(variable))], value=m.Dict()) | m.AnnAssign(m.Name(variable), value=m.Dict())
    for line in module.body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if m.matches(statement, targets):
                return cst.ensure_type(cst.ensure_type(statement, cst.Assign | cst.AnnAssign).value, cst.Dict)  # type: ignore[arg-type]
    return None


def _declared(module: cst.Module, variable: str, value: str) -> cst.Module:
    kinds = m.SimpleStatementLine([m.Import() | m.ImportFrom()])
    after = 1 + max((i for i, line in enumerate(module.body) if m.matches(line, kinds)), default=-1)
    config = next(
        (i for i, line in enumerate(module.body) if variable == "SPACE" and code(line).lstrip().startswith("CONFIG")), None
    )
    blank = [] if config is not None else [cst.EmptyLine(indent=False)]
    line = cst.ensure_type(cst.parse_statement(f"{variable} = {value}\n"), cst.SimpleStatementLine).with_changes(
        leading_lines=blank
    )
    place = after if config is None else config + 1
    return module.with_changes(body=[*module.body[:place], line, *module.body[place:]])


def without_unused_knob(module: cst.Module, name: str) -> cst.Module:
    """Removes a knob from `CONFIG` and `SPACE` that no code reads any more."""
    whole = find(module, cst.Name, m.Name("CONFIG"))
    reads = find(module, cst.Subscript, m.Subscript(value=m.Name("CONFIG")))
    if len(whole) - len(reads) > 1 or any(name in code(node) for node in reads):  # one bare name is the assignment itself
        return module
    for variable in ("CONFIG", "SPACE"):
        table = knob_table(module, variable)
        if table is not None:
            kept = [e for e in table.elements if not (isinstance(e, cst.DictElement) and code(e.key).strip("\"'") == name)]
            module = edited(module, [(table, with_part(elements=kept))])
    return module
