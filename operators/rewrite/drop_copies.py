"""Removes copies that wrappers make of tensors for kernels that need none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst
import libcst.matchers as m

from operators.edits import edited
from operators.rewrite.accesses import positional
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.unpacking import axes_of
from operators.source import Launch, NotApplicableError, Source, assigned, code, find

COPY = m.Call(func=m.Attribute(attr=m.Name("contiguous")), args=[])
NEW = frozenset({"empty", "zeros", "ones", "full", "arange", "tensor", "rand", "randn", "cat", "stack"})
"""Functions of torch whose results are contiguous."""
HARMLESS = frozenset({"shape", "size", "device", "dtype", "numel", "element_size", "dim", "ndim", "stride", "is_cuda"})
"""What may be asked of a tensor whatever its strides, besides the strides that kernels get."""


class DropCopies(Rewrite):
    """`x.contiguous()` becomes `x` where `x` is contiguous anyway, or where its kernels get every stride of it and use them.

    In the first case the call costs host time alone; in the second a strided input was copied before each launch. Nothing else may hang on
    the strides: `torch.empty_like(x)` or a `view` keep the copy.
    """

    name = "drop_copies"
    when = "A wrapper asks for contiguous tensors before launches; inputs are transposed or sliced."
    cites = "PyTorch documentation, torch.Tensor.contiguous; strides as kernel arguments as in Triton tutorial 03."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per copy in a function that launches kernels."""
        functions = {id(launch.function): launch.function for launch in source.launches}
        for function in functions.values():
            for call in find(function, cst.Call, COPY):
                copied = cst.ensure_type(call.func, cst.Attribute).value
                yield Site(f"{' '.join(code(copied).split())} is not copied", partial(_rewrite, source, function, call, copied))


def _rewrite(source: Source, function: cst.FunctionDef, call: cst.Call, copied: cst.BaseExpression) -> cst.Module:
    if not _is_contiguous(function, copied):
        launches = tuple(launch for launch in source.launches if launch.function is function)
        _check_strided(source, launches, function, call, copied)
    module = edited(source.module, [(call, lambda node: cst.ensure_type(node.func, cst.Attribute).value)])
    assert isinstance(module, cst.Module)
    return module


def _is_contiguous(function: cst.FunctionDef, node: cst.BaseExpression) -> bool:
    """Whether a tensor was made just so."""
    if isinstance(node, cst.Name):
        values = assigned(function, node.value)
        parameters = {item.name.value for item in function.params.params}
        stores = find(function, cst.AssignTarget, m.AssignTarget(m.Name(node.value)))
        simple = len(values) == len(stores) == 1 and node.value not in parameters
        return simple and isinstance(values[0], cst.BaseExpression) and _is_contiguous(function, values[0])
    made = m.Call(func=m.Attribute(m.Name("torch"), m.OneOf(*(m.Name(name) for name in sorted(NEW)))))
    given = [item.keyword.value for item in node.args if item.keyword is not None] if isinstance(node, cst.Call) else []
    return m.matches(node, COPY) or (m.matches(node, made) and not {"memory_format", "out"} & set(given))


def _check_strided(
    source: Source, launches: tuple[Launch, ...], function: cst.FunctionDef, call: cst.Call, copied: cst.BaseExpression
) -> None:
    """Raises NotApplicableError unless a copy of a named tensor, kept under one name, only goes to kernels that get all its strides."""
    names = [
        cst.ensure_type(line.targets[0].target, cst.Name).value
        for line in find(function, cst.Assign, m.Assign(targets=[m.AssignTarget(m.Name())]))
        if line.value is call
    ]
    if len(names) != 1 or len(find(function, cst.AssignTarget, m.AssignTarget(m.Name(names[0])))) != 1:
        raise NotApplicableError(f"{code(copied)} is copied for more than one name, or for none")
    name = names[0]
    dimensions = axes_of(function, name)
    if dimensions is None:
        raise NotApplicableError(f"how many axes {name} has is not told")
    asked = find(function, cst.Attribute, m.Attribute(m.Name(name)))
    if any(item.attr.value not in HARMLESS and not m.matches(item, m.Attribute(attr=m.Name("contiguous"))) for item in asked):
        raise NotApplicableError(f"the wrapper asks more of {name} than its sizes")
    given = 0
    for launch in launches:
        texts = {parameter: code(item.value) for parameter, item in launch.arguments.items()}
        if name in texts.values():
            given += list(texts.values()).count(name)
            strides = {text: parameter for parameter, text in texts.items() if text.startswith(f"{name}.stride(")}
            kernel = source.kernels[launch.kernel]
            for axis in range(dimensions):
                passed = [
                    strides[text] for text in (f"{name}.stride({axis})", f"{name}.stride({axis - dimensions})") if text in strides
                ]
                if not passed or len(find(kernel.node.body, cst.Name, m.Name(passed[0]))) == 0:
                    raise NotApplicableError(f"{kernel.name} does not use the stride of {name} along axis {axis}")
    plain = len(find(function.body, cst.Name, m.Name(name))) - len(asked) - 1
    plain -= sum(
        len(positional(item)) for item in find(function, cst.Call, m.Call(func=m.Name("len"), args=[m.Arg(m.Name(name))]))
    )
    own = 0 if code(copied) == name else len(find(copied, cst.Name, m.Name(name)))
    if given == 0 or plain - own != given:
        raise NotApplicableError(f"{name} is used besides launches")
