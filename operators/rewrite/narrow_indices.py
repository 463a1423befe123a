"""Computes places in the grid in 32 bits where a constexpr from the wrapper says that tensors are small enough."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst
import libcst.matchers as m

from operators.edits import edited, expression, unused
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.memory import bases
from operators.rewrite.parameters import Edits, passed
from operators.source import Kernel, Launch, NotApplicableError, Source, code, find

PLACE = m.Call(func=m.Attribute(m.Name("tl"), m.Name("program_id")))
WIDE = m.Call(func=m.Attribute(PLACE, m.Name("to")), args=[m.Arg(m.Attribute(m.Name("tl"), m.Name("int64")))])
LIMIT = "2**31"


class NarrowIndices(Rewrite):
    """`tl.program_id(0).to(tl.int64)` stays 32 bits wide under `NARROW`, which launches give as "every tensor has fewer than 2**31 bytes".

    Offsets count elements, which have a byte or more, and are computed from the place by products that stay inside the tensor, so they
    fit. The wide form stays for larger tensors. Wide multiplications take several instructions and registers in pairs.
    """

    name = "narrow_indices"
    when = "Kernels with 64-bit row offsets run on tensors below 2 GiB: short rows, many pointers, register pressure."
    cites = "CUDA C++ Programming Guide, throughput of 64-bit integer arithmetic; TorchInductor's choice of index type."

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per kernel that widens its place in the grid."""
        for kernel in source.kernels.values():
            wide = find(kernel.node.body, cst.Call, WIDE)
            if wide:
                strategy = f"{kernel.name} computes offsets in 32 bits where tensors are small"
                yield Site(strategy, partial(_rewrite, source, kernel, wide))


def _rewrite(source: Source, kernel: Kernel, wide: list[cst.Call]) -> cst.Module:
    if any(name.startswith("NARROW") for name in kernel.parameters):
        raise NotApplicableError(f"{kernel.name} has 32-bit indices already")
    pointers = set(bases(kernel).values())
    if "" in pointers or not pointers:
        raise NotApplicableError(f"it is not clear through which parameters {kernel.name} accesses memory")
    flag = unused("NARROW", source.names)
    tests = [_small(launch, sorted(pointers)) for launch in source.launches_of(kernel)]
    edits: Edits = passed(source, kernel, flag, tests, constexpr=True)
    edits += [(call, partial(_either, flag=flag)) for call in wide]
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module


def _small(launch: Launch, pointers: list[str]) -> str:
    """What the launch says of its tensors: strides bound how far from its first element a tensor reaches."""
    tensors = list(dict.fromkeys(launch.text(name).strip() for name in pointers))
    if not all(m.matches(cst.parse_expression(text), m.Name() | m.Attribute()) for text in tensors):
        raise NotApplicableError(f"a launch of {launch.kernel} computes a tensor in its arguments")
    reach = "sum((size - 1) * stride for size, stride in zip({0}.shape, {0}.stride()))"
    reaches = ", ".join(f"{reach.format(text)} * {text}.element_size()" for text in tensors)
    return f"max({reaches}) < {LIMIT}" if len(tensors) > 1 else f"{reaches} < {LIMIT}"


def _either(call: Any, flag: str) -> Any:
    return expression(f"({code(call.func.value)} if {flag} else {code(call)})")
