"""Loads tiles of matrices through tensor descriptors where their memory allows it, by pointers elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from operators.edits import edited, unused
from operators.rewrite.accesses import calls_of, positional
from operators.rewrite.base import Rewrite, Site
from operators.rewrite.matrices import Tile, matrix_tile
from operators.rewrite.parameters import Edits, only_launches, passed, with_prologue
from operators.source import Kernel, Launch, NotApplicableError, Source, code

SMALLEST_BYTES, LARGEST_EXTENT = 16, 256
"""Bounds of a descriptor's tile: bytes of its last extent, elements of each."""


class TensorDescriptors(Rewrite):
    """`tl.load(p + rows[:, None] * s + cols[None, :], mask=…, other=0.0)` becomes `desc.load([row, col])` under `DESCRIBED`.

    A descriptor's load needs one thread, no addresses in registers and no masks: outside the matrix it reads zeros. Launches pass
    whether memory is as descriptors want it: last stride 1, the other and the first byte multiples of 16, tiles of 16 bytes and up to
    256 elements each way, and whole tiles where indices wrap around; else loads go by pointers as before. All Triton versions from
    3.4 on have descriptors; block pointers, which 3.9 has removed, are not used.
    """

    name = "tensor_descriptors"
    when = "Matrix products and attention on Hopper and Blackwell: operand tiles of 16-bit and 8-bit matrices."
    cites = (
        "Triton documentation, tl.make_tensor_descriptor; PTX ISA, cp.async.bulk.tensor; CUDA Driver API, cuTensorMapEncodeTiled."
    )

    def check_target(self, target: str) -> None:
        """CUDA from compute capability 9.0 on, where descriptors are hardware."""
        backend, _, arch = target.partition(":")
        if backend != "cuda" or not arch.isdecimal() or int(arch) < 90:
            raise NotApplicableError(f"{target} has no tensor memory accelerator, which makes descriptors fast: cuda:90 has")

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per load of a tile."""
        for kernel in source.kernels.values():
            for call in calls_of(kernel.node.body, "load"):
                if len(positional(call)) == 1 and "," in code(call):
                    strategy = f"{kernel.name} loads a tile through a descriptor: {' '.join(code(positional(call)[0]).split())}"
                    yield Site(strategy, partial(_rewrite, source, kernel, call))


def _rewrite(source: Source, kernel: Kernel, call: cst.Call) -> cst.Module:
    tile = matrix_tile(kernel, call)
    launches = only_launches(source, kernel)
    described, descriptor = unused("DESCRIBED", source.names), unused(f"{tile.base}_tiles", source.names)
    rows, columns = tile.axes
    made = f"""if {described}:
    {descriptor} = tl.make_tensor_descriptor(
        {tile.base}, shape=[{rows.bound}, {columns.bound}], strides=[{rows.stride}, 1], block_shape=[{rows.block}, {columns.block}]
    )
"""
    load = f"{descriptor}.load([{rows.start}, {columns.start}])"
    edits: Edits = [
        (call, lambda node: cst.parse_expression(f"({load} if {described} else {code(node)})")),
        (kernel.node.body, with_prologue(kernel, made)),
    ]
    edits += passed(source, kernel, described, [_allowed(launch, tile) for launch in launches], constexpr=True)
    module = edited(source.module, edits)
    assert isinstance(module, cst.Module)
    return module


def _allowed(launch: Launch, tile: Tile) -> str:
    """What a launch passes: whether memory is as descriptors want it."""
    tensor, (rows, columns) = launch.text(tile.base), tile.axes

    def given(text: str) -> str:
        return text if text.isdecimal() else launch.text(text)

    conditions = [
        f"{tensor}.storage_offset() * {tensor}.element_size() % 16 == 0",
        f"{given(rows.stride)} * {tensor}.element_size() % 16 == 0",
        *([f"{given(columns.stride)} == 1"] if columns.stride != "1" else []),
        f"{given(columns.block)} * {tensor}.element_size() >= {SMALLEST_BYTES}",
        *(f"{given(axis.block)} <= {LARGEST_EXTENT}" for axis in tile.axes),
        *(f"{given(axis.bound)} % {given(axis.block)} == 0" for axis in tile.axes if axis.wraps),
        f"{given(rows.bound)} > 0",
        f"{given(columns.bound)} > 0",
    ]
    return "(" + " and ".join(conditions) + ")"
