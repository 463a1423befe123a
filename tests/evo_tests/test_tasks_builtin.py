"""Every task in the package: its numbers are right, its reference keeps float64, its starting kernel is correct."""

from __future__ import annotations

import pytest
import torch

from evo.evaluation.base import Effort
from evo.evaluation.draws import choose_draws
from evo.evaluation.inputs import make_inputs, to_float64
from evo.evaluation.judge import Judge
from evo.evaluation.oracle import compute_outputs, flatten_outputs
from evo.evaluation.tolerance import Verdict
from evo.knobs import read_knobs
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from evo.tasks.loading import builtin_tasks, load_task, reference_source, starting_sources, task_text
from tests.evo_tests.interpreted_draws import run_interpreted

SEED = 20_240_607


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


def test_the_six_tasks_are_there() -> None:
    assert builtin_tasks() == ("attention", "gemm_bias_gelu", "quantize_rows", "rms_norm", "softmax", "swiglu")


@pytest.mark.parametrize("name", builtin_tasks())
def test_starting_kernels_are_correct_and_quick_when_interpreted(
    name: str, interpreted: dict[tuple[str, int, str, Draw], tuple[object, float]]
) -> None:
    task, judge = load_task(name), Judge()
    for number in range(len(task.starting_kernels)):
        for case in task.small_cases:
            for draw in draws_of(task, case):
                returned, seconds = interpreted[name, number, case.name, draw]
                verdict = judge.judge(task, case, draw, flatten_outputs(returned))
                assert isinstance(verdict, Verdict), verdict.message
                assert seconds < 1.0, f"{case.name} takes {seconds:.1f} s of processor time"


@pytest.mark.parametrize("name", builtin_tasks())
def test_the_oracle_stays_in_float64_and_the_reference_in_the_dtypes_of_the_task(name: str) -> None:
    task = load_task(name)
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
        rounded += [torch.equal(e, e.float().double()) for e in exact]
    # Values that were rounded to 32 bits on the way would all survive the round trip unchanged.
    assert not all(rounded)


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
