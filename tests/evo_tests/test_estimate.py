"""The modelled latency orders what every kernel author can order by eye, on kernels that are really traced and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from evo.evaluation.blockwork import count_work
from evo.evaluation.estimate import least_seconds, modelled_latency_us, occupancy
from evo.evaluation.instructions import instruction_mix
from evo.records import Configuration, Failure
from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.loading import load_task, starting_sources
from evo.tracing.compiler import Compiler
from evo.tracing.plan import Kernel, LaunchPlan
from evo.tracing.targets import target_named
from evo.tracing.tracer import Tracer

H200 = target_named("cuda:90")

ROWS = """
import torch, triton, triton.language as tl
CONFIG = {"num_warps": 4, "WIDTH": 1, "GRID": 4096, "PASSES": 1, "BLOCK": 1024, "TAIL": 0}

@triton.jit
def kernel(x, y, rows, columns, WIDTH: tl.constexpr, PASSES: tl.constexpr, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, columns, BLOCK):
            at = start + tl.arange(0, BLOCK)
            total += tl.load(x + row * columns * WIDTH + at * WIDTH, mask=at < columns, other=0.0)
        for again in tl.static_range(PASSES - 1):
            for start in range(0, columns, BLOCK):
                at = start + tl.arange(0, BLOCK)
                total = tl.maximum(total, tl.load(x + row * columns * WIDTH + at * WIDTH, mask=at < columns, other=0.0))
        tl.store(y + row, tl.sum(total, axis=0))

def rows(x):
    n, m = x.shape
    y = torch.empty((n,), dtype=x.dtype, device=x.device)
    kernel[(min(n, CONFIG["GRID"]),)](
        x, y, n, m - CONFIG["TAIL"], CONFIG["WIDTH"], CONFIG["PASSES"], CONFIG["BLOCK"], num_warps=CONFIG["num_warps"]
    )
    return y
"""

CASE = Case("4096x4096", (TensorSpec((4096, 4096), "float32"),), 4096 * 4097 * 4, 4096 * 4096)


def _reference(x: torch.Tensor) -> torch.Tensor:
    return x.sum(dim=1)


ROWS_TASK = Task(
    "rows", "Row sums.", "rows", _reference, (CASE,), (), (Case("small", CASE.arguments, CASE.bytes, CASE.flops),), (ROWS,)
)

Model = Callable[..., float]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    tracer, compiler = Tracer("cuda:90"), Compiler("cuda:90", sass=True)

    def latency(task: Task, source: str, case: Case, **knobs: int) -> float:
        plan = tracer.trace(source, task, case, Configuration(knobs))
        assert not isinstance(plan, Failure), plan
        binaries = compiler.compile_plan(plan)
        assert not isinstance(binaries, Failure), binaries
        return modelled_latency_us(plan, binaries, case, H200)

    yield latency
    tracer.close()
    compiler.close()


@pytest.fixture(scope="module")
def rows(model: Model) -> Model:
    return lambda **knobs: model(ROWS_TASK, ROWS, CASE, **knobs)


def test_a_full_device_comes_near_the_bandwidth_and_not_past_it(rows: Model) -> None:
    least = 1e6 * (CASE.bytes - H200.l2_bytes) / H200.bandwidth
    assert least < rows() < 3 * 1e6 * CASE.bytes / H200.bandwidth


def test_too_few_programs_are_slow(rows: Model) -> None:
    assert rows(GRID=16) > 3 * rows()
    assert rows(GRID=16) < rows(GRID=1)


SKEWED = """module {
  tt.func public @kernel(%x: !tt.ptr<f32>, %n: i32) {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %0 = tt.get_program_id x : i32
    %1 = arith.subi %c1, %0 : i32
    %2 = arith.maxsi %1, %c0 : i32
    %3 = arith.muli %n, %2 : i32
    scf.for %i = %c0 to %3 step %c1  : i32 {
      %4 = tt.load %x : !tt.ptr<f32>
    }
    tt.return
  }
}
"""


def test_one_program_that_works_for_all_is_seen() -> None:
    work = count_work(SKEWED, [None, 900.0], (3, 1, 1))
    assert work.accesses[0].trips > 200
    assert (
        count_work(SKEWED.replace("%1 = arith.subi %c1, %0", "%1 = arith.subi %c1, %c0"), [None, 900.0], (3, 1, 1))
        .accesses[0]
        .trips
        == 900
    )


def test_nobody_is_promised_more_than_the_device_can() -> None:
    cached = Case("small", CASE.arguments, H200.l2_bytes // 2, 0)
    busy = Case("busy", CASE.arguments, 1, 10**12)
    assert least_seconds(CASE, H200) >= (CASE.bytes - H200.l2_bytes) / H200.bandwidth
    assert least_seconds(cached, H200) > 0
    assert least_seconds(busy, H200) * H200.tensor_flops >= 0.4 * busy.flops


def test_more_passes_over_memory_are_slower(rows: Model) -> None:
    one, two, three = (rows(PASSES=passes) for passes in (1, 2, 3))
    assert one < two < three


def test_loads_that_cannot_be_vectorised_are_slower(rows: Model) -> None:
    # An odd row length leaves rows without alignment, so every load moves 32 bits instead of 128.
    assert rows(TAIL=1) > rows()


def test_one_warp_with_a_huge_block_spills_and_is_slower(rows: Model) -> None:
    assert rows(BLOCK=4096, num_warps=1) > rows(BLOCK=4096, num_warps=8)


def test_warps_without_work_are_slower(rows: Model) -> None:
    assert rows(BLOCK=256, num_warps=32) > rows(BLOCK=256, num_warps=2)


def test_larger_tiles_feed_tensor_cores_better(model: Model) -> None:
    task = load_task("gemm_bias_gelu")
    source, case = starting_sources(task)[0], task.training_cases[0]
    tiny = model(task, source, case, BLOCK_M=16, BLOCK_N=32, BLOCK_K=32, num_warps=4)
    middling = model(task, source, case, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, num_warps=4)
    large = model(task, source, case, BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=8)
    assert 1e6 * case.flops / H200.tensor_flops < large < middling < tiny


def test_binaries_of_another_plan_are_refused() -> None:
    kernel = Kernel("k", "module {}", (), {})
    plan = LaunchPlan("3", "cuda:90", (), (), (), (kernel,), {"prepare": (), "forward": (), "backward": ()}, [], (), {})
    with pytest.raises(ValueError, match="binaries"):
        modelled_latency_us(plan, (), CASE, H200)


def test_occupancy_follows_the_scarcest_resource() -> None:
    assert occupancy(10**6, 4, 32, 0, H200).resident == 16  # 2048 threads
    assert occupancy(10**6, 4, 255, 0, H200).resident == 2  # registers
    assert occupancy(10**6, 4, 32, 100_000, H200).resident == 2  # shared memory
    assert occupancy(10**6, 1, 16, 0, H200).resident == 32  # programs
    few = occupancy(10, 4, 32, 0, H200)
    assert (few.busy, few.waves, few.resident) == (10, 1, 1)


LOOPS = """
module {
  tt.func public @k(%arg0: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %arg1: i32, %arg2: !tt.ptr<f32>) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32
    %c64 = arith.constant 64 : i32
    %0 = tt.get_program_id x : i32
    %1 = arith.addi %0, %c64 : i32
    %2 = tt.splat %arg0 : !tt.ptr<f16> -> tensor<64x!tt.ptr<f16>>
    %3:2 = scf.for %arg3 = %c0 to %arg1 step %c64 iter_args(%arg4 = %2, %arg5 = %c0) -> (tensor<64x!tt.ptr<f16>>, i32)  : i32 {
      %5 = tt.load %arg4 : tensor<64x!tt.ptr<f16>>
      scf.yield %arg4, %arg5 : tensor<64x!tt.ptr<f16>>, i32
    }
    %4 = tt.load %arg2 : !tt.ptr<i32>
    scf.for %arg3 = %c0 to %4 step %c64  : i32 {
      %5 = tt.load %3#0 : tensor<64x!tt.ptr<f16>>
    }
    tt.return
  }
}
"""


def test_trips_come_from_arguments_and_unknown_ones_from_the_caller() -> None:
    work = count_work(LOOPS, [None, 640.0, None], (8, 1, 1), unknown_trips=5.0)
    known, single, unknown = work.accesses
    assert (known.argument, known.trips, known.nbytes, known.in_unknown_loop) == (0, 10.0, 1280.0, False)
    assert (single.argument, single.elements, single.trips) == (2, 1, 1.0)
    assert (unknown.argument, unknown.trips, unknown.in_unknown_loop) == (0, 5.0, True)
    assert work.memory_rounds == 16.0


def test_opcodes_go_to_their_units() -> None:
    sass = instruction_mix(
        {"LDG.E.128": 2, "LDG.E.U16": 3, "STG.E": 1, "LDL": 4, "MUFU.EX2": 5, "HGMMA.64": 6, "NOP": 9, "LDGSTS.E.BYPASS.128": 1}
    )
    assert dict(sass.loads) == {16: 3, 2: 3}
    assert dict(sass.stores) == {4: 1}
    assert (sass.local, sass.special, sass.matrix, sass.warpgroup, sass.asynchronous, sass.issued) == (4, 5, 6, 6, 1, 22)
    amd = instruction_mix({"global_load_dwordx4": 2, "global_load_ushort": 1, "v_mfma_f32_32x32x8_f16": 3, "ds_read_b128": 1})
    assert dict(amd.loads) == {16: 2, 2: 1}
    assert (amd.matrix, amd.shared_bytes) == (3, 16.0)
