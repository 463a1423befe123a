"""Every task in the package: its numbers are right, its reference keeps float64, its starting kernel is correct."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import evo.tasks
from evo.evaluation.base import Effort
from evo.evaluation.draws import choose_draws
from evo.evaluation.inputs import make_inputs, to_float64
from evo.evaluation.judge import Judge
from evo.evaluation.oracle import compute_outputs
from evo.evaluation.tolerance import Verdict
from evo.knobs import read_knobs
from evo.main import app
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from evo.tasks.loading import builtin_tasks, load_task, reference_source, starting_sources, task_text
from tests.evo_tests.interpreted_draws import flattened, run_interpreted

SEED = 20_240_607
SLOWEST = 30
"""How many times as long as all on average a small case may take: 1 s where they take 0.03 s, and more on a slower machine."""
ROOM = Path(evo.tasks.__path__[0])
OF_FEW_BITS = {"embedding", "moe_permute", "transpose", "max_pool2d", "top_k", "dequantize_int4", "embedding_backward"}
"""Copies of inputs, sums of few bfloat16 numbers, and products of a level and a scale, which 32 bits hold."""


def draws_of(task: Task, case: Case) -> list[Draw]:
    """The declared distribution, and this case's share of all variations."""
    return [Draw(SEED + draw.seed, draw.variation) for draw in choose_draws(task, case, Effort.VERIFY, False)]


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int, str, Draw], tuple[object, float]]:
    """What every starting kernel returns under Triton's interpreter."""
    jobs, keys = [], []
    for name in builtin_tasks():
        task = load_task(name)
        draws = [(case.name, draw) for case in task.small_cases for draw in draws_of(task, case)]
        for number, source in enumerate(starting_sources(task)):
            given = [[case, draw.seed, draw.variation.value] for case, draw in draws]
            jobs.append({"task": name, "source": source, "configuration": dict(read_knobs(source).default), "draws": given})
            keys.append([(name, number, case, draw) for case, draw in draws])
    results = run_interpreted(jobs, tmp_path_factory.mktemp("interpreted"))
    return {key: result for pair in zip(keys, results, strict=True) for key, result in zip(*pair, strict=True)}


def test_a_task_is_known_by_the_name_of_its_module_whatever_group_it_is_in() -> None:
    assert {"attention", "gemm_bias_gelu", "quantize_rows", "rms_norm", "softmax", "swiglu"} < set(builtin_tasks())
    assert len(builtin_tasks()) >= 30
    for name in builtin_tasks():
        assert load_task(name).name == name
    modules = [path.stem for path in ROOM.rglob("*.py") if path.parent != ROOM and path.parent.name != "starts"]
    assert len({*modules, "__init__"}) == len([name for name in modules if name != "__init__"]) + 1, (
        "names differ over all groups"
    )


def test_every_starting_kernel_belongs_to_a_task() -> None:
    used = {Path(item).name for name in builtin_tasks() for item in load_task(name).starting_kernels}
    assert used == {path.name for path in (ROOM / "starts").glob("*.py")} - {"__init__.py"}


def test_tasks_are_listed_by_kind_a_line_each() -> None:
    shown = CliRunner().invoke(app, ["tasks"], env={"COLUMNS": "160"})
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    assert len(lines) == len(builtin_tasks()) + 2
    tasks = [line[: line.index(" + ")].split()[-2] for line in lines[1:-1]]
    assert sorted(tasks) == list(builtin_tasks())
    kinds = [load_task(name).kind for name in tasks]
    assert kinds == sorted(kinds)


@pytest.mark.parametrize("name", builtin_tasks())
def test_starting_kernels_are_correct_and_quick_when_interpreted(
    name: str, interpreted: dict[tuple[str, int, str, Draw], tuple[object, float]]
) -> None:
    task, judge = load_task(name), Judge()
    mean_s = statistics.fmean(seconds for _, seconds in interpreted.values())
    for number in range(len(task.starting_kernels)):
        for case in task.small_cases:
            for draw in draws_of(task, case):
                returned, seconds = interpreted[name, number, case.name, draw]
                assert not isinstance(returned, str), f"{case.name}: {returned}"
                verdict = judge.judge(task, case, draw, flattened(task, returned))
                assert isinstance(verdict, Verdict), verdict.message
                assert seconds < SLOWEST * mean_s, (
                    f"{case.name} takes {seconds:.1f} s of processor time, all {mean_s:.2f} s on average"
                )


@pytest.mark.parametrize("name", builtin_tasks())
def test_the_oracle_stays_in_float64_and_the_reference_in_the_dtypes_of_the_task(name: str) -> None:
    task = load_task(name)
    if task.oracle == "stochastic":
        return
    rounded = []
    for case in task.small_cases:
        inputs = make_inputs(task, case, SEED, "cpu")
        native = compute_outputs(task, inputs.clone()).tensors
        exact = compute_outputs(task, to_float64(inputs)).tensors
        for n, e in zip(native, exact, strict=True):
            assert n.shape == e.shape
            assert n.is_contiguous()
            if n.dtype.is_floating_point:
                assert e.dtype == torch.float64
                torch.testing.assert_close(n.double(), e, atol=0.05, rtol=0.05)
        rounded += [torch.equal(e, e.float().double()) for e in exact if e.is_floating_point()]
    # Values that were rounded to 32 bits on the way would all survive the round trip unchanged.
    assert name in OF_FEW_BITS or not rounded or not all(rounded)


@pytest.mark.parametrize("name", builtin_tasks())
def test_starting_kernels_declare_knobs_that_may_vary(name: str) -> None:
    task = load_task(name)
    for source in starting_sources(task):
        knobs = read_knobs(source)
        assert knobs.size > 1
        assert set(knobs.space) == set(knobs.default)
        assert "make_block_ptr" not in source


@pytest.mark.parametrize("name", builtin_tasks())
def test_held_out_cases_lie_below_and_above_the_training_ones(name: str) -> None:
    task = load_task(name)
    training = [case.bytes for case in task.training_cases]
    held_out = [case.bytes for case in task.held_out_cases]
    assert 3 <= len(training) <= 5
    assert min(held_out) < min(training)
    assert max(held_out) > max(training)
    assert all(case.bytes < 1 << 20 for case in task.small_cases)


@pytest.mark.parametrize(
    ("name", "case", "bytes_moved", "flops"),
    [
        # Read and written once: 2 · 4096 · 4096 · 4; five operations per element.
        ("softmax", "4096x4096_float32", 134_217_728, 83_886_080),
        # Four matrices of 4096 · 4096 · 2 and 4096 · 2 of weights.
        ("rms_norm", "4096x4096", 134_225_920, 83_886_080),
        # Three matrices of 128 · 14336 · 2.
        ("swiglu", "128x14336", 11_010_048, 9_175_040),
        # 2 · (1024² + 1024² + 1024 + 1024²); 2 · 1024³ + 9 · 1024².
        ("gemm_bias_gelu", "1024x1024x1024", 6_293_504, 2_156_920_832),
        # Four tensors of 8 · 16 · 1024 · 64 · 2; 2 · 8 · 16 · 64 · 1024 · 1025.
        ("attention", "b8_h16_s1024_d64", 67_108_864, 17_196_646_400),
        # Read logits and labels, write one loss per row; four operations per logit.
        ("cross_entropy", "4096x32000", 2 * 4096 * 32000 + 8 * 4096 + 4 * 4096, 4 * 4096 * 32000),
        # 4096 rows of 4096 in two bytes read at most and written, and the ids; nothing is computed.
        ("embedding", "1x4096_v32000", 8 + 2 * 4096 + 2 * 4096, 0),
        # Seven vectors of four bytes: four read, three written.
        ("adamw", "16777216_t10", 7 * 4 * 16_777_216, 12 * 16_777_216),
        # One byte per element of both operands, scales of four, outputs of two.
        ("gemm_fp8", "4096x4096x4096", 2 * 4096**2 + 2 * 4 * 4096 + 2 * 4096**2, 4096**2 * (2 * 4096 + 2)),
        # Half a byte per weight, 32 scales of two bytes for each of 28672 rows.
        (
            "gemm_int4",
            "1x28672x4096_g128",
            2 * 4096 + 28672 * 2048 + 2 * 28672 * 32 + 2 * 28672,
            2 * 28672 * 4096 * 2,
        ),
        # Window 128 of 8192: 128 · 129 / 2 + (8192 − 128) · 128 pairs, 64 heads of 64, two products; q and y of 64 heads, k and v of 8.
        ("sliding_window_attention", "b1_h64_k8_s8192_d64_w128", 2 * 8192 * 64 * (2 * 64 + 2 * 8), 4 * 64 * 64 * 1_040_448),
        # 3 × 3 × 64 products per output of 56 × 56 × 64 × 32.
        ("conv2d", "32x56x56x64_f64_k3_s1_p1", 2 * (2 * 32 * 56 * 56 * 64 + 64 * 9 * 64), 2 * 32 * 56 * 56 * 64 * 576),
        # 2048 · 8192 · (2 + 1) + 4 · 2048.
        ("quantize_rows", "2048x8192_bfloat16", 50_339_840, 83_886_080),
    ],
)
def test_bytes_and_flops_agree_with_counting_by_hand(name: str, case: str, bytes_moved: int, flops: int) -> None:
    found = load_task(name).case(case)
    assert (found.bytes, found.flops) == (bytes_moved, flops)


@pytest.mark.parametrize("name", builtin_tasks())
def test_the_text_for_a_model_names_the_entry_and_training_cases_and_hides_the_held_out_ones(name: str) -> None:
    task = load_task(name)
    text = task_text(task)
    assert f"Entry: {task.entry}(" in text
    assert "torch.Tensor" in text
    assert "'torch" not in text
    assert all(case.name in text for case in task.training_cases)
    assert not any(f"{case.name}:" in text for case in task.held_out_cases)


def test_attention_in_pieces_of_heads_equals_attention_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task("attention")
    inputs = make_inputs(task, task.small_cases[0], SEED, "cpu")
    at_once = task.reference(*inputs.arguments)
    monkeypatch.setitem(task.reference.__globals__, "SCORES_AT_ONCE", 1)
    assert torch.equal(task.reference(*inputs.arguments), at_once)
    q, k, v = inputs.arguments
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    torch.testing.assert_close(at_once.double(), expected, atol=5e-3, rtol=5e-3)


def test_the_source_of_a_reference_brings_the_constants_it_uses_and_nothing_else() -> None:
    source = reference_source(load_task("quantize_rows"))
    assert "import torch" in source
    assert "SMALLEST = 1e-10" in source
    assert "def quantize_rows" in source
    assert "TASK" not in source
    compile(source, "reference", "exec")
