"""What the compiler makes of recorded kernels: equal bytes for equal kernels, and a verdict for whatever it is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from evo.records import Failure, Stage, Status
from evo.tracing.compiler import Binary, Compiler
from evo.tracing.plan import Kernel

TTIR = """
module { tt.func public @double(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}) {
    %at = tt.make_range {start = 0 : i32, end = 256 : i32} : tensor<256xi32>
    %base = tt.splat %x : !tt.ptr<f32> -> tensor<256x!tt.ptr<f32>>
    %place = tt.addptr %base, %at : tensor<256x!tt.ptr<f32>>, tensor<256xi32>
    %value = tt.load %place : tensor<256x!tt.ptr<f32>>
    %sum = arith.addf %value, %value : tensor<256xf32>
    tt.store %place, %sum : tensor<256x!tt.ptr<f32>>
    tt.return } }
"""


def kernel(ttir: str = TTIR, **options: Any) -> Kernel:
    return Kernel("double", ttir, (("x", "*fp32"),), options)


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    compiler = Compiler("cuda:90")
    yield compiler
    compiler.close()


def test_equal_kernels_give_equal_bytes_that_name_no_folder(compiler: Compiler) -> None:
    one, other = compiler.compile(kernel()), compiler.compile(kernel())
    assert isinstance(one, Binary)
    assert isinstance(other, Binary)
    assert one.data == other.data
    assert b"triton-evolve" not in one.data
    assert b"kernel.ttir" not in one.data


def test_options_reach_the_binary(compiler: Compiler) -> None:
    binary = compiler.compile(kernel(num_warps=2))
    assert isinstance(binary, Binary)
    assert binary.metadata["num_warps"] == 2
    assert binary.resources.registers > 0
    assert binary.resources.spill_bytes == 0


@pytest.mark.parametrize(
    "ttir",
    ["", "not a module", "module {", TTIR.replace("tt.return", "tt.never_heard_of")],
    ids=["empty", "prose", "cut", "unknown operation"],
)
def test_what_is_no_kernel_is_a_verdict_and_the_next_compiles(compiler: Compiler, ttir: str) -> None:
    failure = compiler.compile(kernel(ttir))
    assert isinstance(failure, Failure)
    assert (failure.status, failure.stage) == (Status.COMPILE_ERROR, Stage.COMPILE)
    assert failure.signature
    assert isinstance(compiler.compile(kernel()), Binary)


def test_a_compilation_past_its_deadline_is_a_verdict() -> None:
    compiler = Compiler("cuda:90", deadline_s=0.005)
    try:
        failure = compiler.compile(kernel())
    finally:
        compiler.close()
    assert isinstance(failure, Failure)
    assert failure.status is Status.TIMEOUT
    assert "double" in failure.message
