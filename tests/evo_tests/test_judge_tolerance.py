"""One threshold must separate honest arithmetic in another order from every kind of wrong or downgraded result."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evo.evaluation.oracle import Expected, Outputs, flatten_outputs
from evo.evaluation.tolerance import Verdict, compare
from evo.records import Failure, Status
from evo.tasks.base import Tolerance


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def expect(exact: torch.Tensor, reference: torch.Tensor) -> Expected:
    return Expected(flatten_outputs(exact), flatten_outputs(reference))


def check(
    candidate: torch.Tensor, exact: torch.Tensor, reference: torch.Tensor, terms: int, tolerance: Tolerance | None = None
) -> Verdict | Failure:
    return compare(flatten_outputs(candidate), expect(exact, reference), tolerance or Tolerance(), terms)


def tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to the ten mantissa bits that tensor cores read of a float32."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def wrong(result: Verdict | Failure, kind: str = "") -> str:
    assert isinstance(result, Failure), result
    assert result.status is Status.WRONG_VALUES
    assert result.signature.endswith(kind), result
    return result.message


def right(result: Verdict | Failure) -> float:
    assert isinstance(result, Verdict), result.message
    assert 0 <= result.error_ratio <= 1
    return result.error_ratio


K = 1024
A, B = normal(96, K, seed=1), normal(K, 80, seed=2)
PRODUCT, PRODUCT64 = A @ B, A.double() @ B.double()


def test_split_k_and_sequential_blocks_of_an_fp32_gemm_pass() -> None:
    for parts in (2, 8, 64, K):
        total = torch.zeros_like(PRODUCT)
        for a, b in zip(A.chunk(parts, dim=1), B.chunk(parts, dim=0), strict=True):
            total += a @ b
        right(check(total, PRODUCT64, PRODUCT, K))


def test_tf32_and_fp16_gemms_fail_where_fp32_was_asked() -> None:
    assert "input_precision='ieee'" in wrong(check(tf32(A) @ tf32(B), PRODUCT64, PRODUCT, K), "precision")
    wrong(check((A.half().float() @ B.half().float()), PRODUCT64, PRODUCT, K), "precision")
    wrong(check((A @ B).bfloat16().float(), PRODUCT64, PRODUCT, K), "precision")


def test_fp16_gemm_passes_with_float32_sums_and_fails_with_float16_sums() -> None:
    a, b = A.half(), (B / 32).half()
    exact, reference = a.double() @ b.double(), a @ b
    right(check((a.float() @ b.float()).half(), exact, reference, K))
    total = torch.zeros_like(reference)
    for k in range(0, K, 4):
        total += a[:, k : k + 4] @ b[k : k + 4]
    wrong(check(total, exact, reference, K))


def softmax64(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.double(), -1)


def online_softmax(x: torch.Tensor, block: int) -> torch.Tensor:
    highest = torch.full((x.shape[0], 1), float("-inf"))
    total = torch.zeros(x.shape[0], 1)
    for part in torch.split(x, block, dim=1):
        new = torch.maximum(highest, part.amax(dim=1, keepdim=True))
        total = total * torch.exp(highest - new) + torch.exp(part - new).sum(dim=1, keepdim=True)
        highest = new
    return torch.exp(x - highest) / total


def test_online_softmax_passes_on_long_and_short_rows() -> None:
    for columns in (5, 257, 20000):
        x = normal(7, columns, seed=columns) * 3
        right(check(online_softmax(x, 64), softmax64(x), torch.softmax(x, -1), columns))


def test_zeros_fail_on_a_softmax_over_393216_columns() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = normal(1, 393_216, dtype=dtype)
        reference = torch.softmax(x, -1)
        right(check(online_softmax(x.float(), 4096).to(dtype), softmax64(x), reference, 393_216))
        assert "is zero" in wrong(check(torch.zeros_like(reference), softmax64(x), reference, 393_216), "zeros")
        wrong(check(torch.full_like(reference, 1 / 393_216), softmax64(x), reference, 393_216))


def test_softmax_without_its_last_column_or_with_a_shifted_window_fails() -> None:
    x = normal(64, 1000, dtype=torch.bfloat16)
    reference = torch.softmax(x, -1)
    short = torch.softmax(x.float().index_fill(1, torch.tensor([999]), float("-inf")), -1).bfloat16()
    assert "columns" in wrong(check(short, softmax64(x), reference, 1000))
    wrong(check(torch.roll(reference, 1, dims=1), softmax64(x), reference, 1000))


def test_a_constant_fails_on_means() -> None:
    for shape in ((256, 4096), (1, 1 << 20)):
        x = normal(*shape)
        exact, reference = x.double().mean(-1), x.mean(-1)
        right(check(x.reshape(shape[0], -1, 64).sum(-1).sum(-1) / shape[1], exact, reference, shape[1]))
        wrong(check(torch.zeros_like(reference), exact, reference, shape[1]), "zeros")
        wrong(check(torch.full_like(reference, float(exact.mean()) + 1e-3), exact, reference, shape[1]))


def test_sequential_sums_of_positive_and_of_mixed_terms_pass() -> None:
    n = 16_384
    for x in (normal(n, 70), normal(n, 70).abs()):
        total = torch.zeros(70)
        for row in x:
            total += row
        right(check(total, x.double().sum(0), x.sum(0), n))


def test_fused_multiply_add_and_two_roundings_both_pass() -> None:
    a, b, c = (normal(300, 33, seed=seed) for seed in range(3))
    exact = a.double() * b.double() + c.double()
    right(check(exact.float(), exact, a * b + c, 1))
    right(check(a * b + c, exact, exact.float(), 1))


def test_one_wrong_row_and_one_wrong_element_are_found_and_named() -> None:
    row = PRODUCT.clone()
    row[37] *= 1.001
    message = wrong(check(row, PRODUCT64, PRODUCT, K), "some_rows")
    assert "in 1 of 96 rows" in message
    assert "worst at [37," in message
    element = PRODUCT.clone()
    element[5, 79] = PRODUCT[5, 78]
    message = wrong(check(element, PRODUCT64, PRODUCT, K), "some_rows")
    assert "worst at [5, 79]" in message
    assert "1 of 7680 elements" in message
    assert message.count("#") == 2, "one cell of the map, and the legend"


def test_a_zeroed_small_element_beside_large_ones_is_found() -> None:
    x = normal(32, 4096, dtype=torch.bfloat16)
    reference = torch.softmax(x, -1)
    candidate = reference.clone()
    median = int(reference[3].argsort()[2048])
    candidate[3, median] = 0
    assert f"worst at [3, {median}]" in wrong(check(candidate, softmax64(x), reference, 4096))


def test_a_small_row_beside_large_ones_is_judged_by_its_own_size() -> None:
    x = normal(8, 256)
    x[0] *= 1e-6
    candidate = x.clone()
    candidate[0] = 0
    wrong(check(candidate, x.double(), x, 1), "some_rows")


def test_a_row_that_is_a_little_off_everywhere_fails_though_no_element_of_it_does() -> None:
    exact = 1 + 0.25 * torch.arange(256, dtype=torch.float64).repeat(64, 1) / 256  # float16 holds all of it
    reference = exact.half()
    candidate = reference.clone()
    candidate[9] += 3 * torch.finfo(torch.float16).eps
    message = wrong(check(candidate, exact, reference, 1), "some_rows")
    assert "measured over its worst row" in message
    candidate[9, 1:] = reference[9, 1:]
    right(check(candidate, exact, reference, 1))


def test_rows_that_are_each_just_within_their_allowance_are_too_much_together() -> None:
    """Half of the rows may err as the reference does there, the other half as rounding does: both at once is more than either."""
    exact = torch.ones(64, 256, dtype=torch.float64)
    exact[:32] = 2.0**-20
    reference = exact.half()
    step = torch.finfo(torch.float16).eps
    reference[:32] += step  # far off, as where terms cancel
    candidate = exact.half()
    candidate[32:] += 2 * step
    right(check(candidate, exact, reference, 1))
    candidate[:32] += 2 * step
    assert "measured over the whole output" in wrong(check(candidate, exact, reference, 1))


def test_nan_and_infinity_must_be_exactly_where_the_oracle_has_them() -> None:
    x = normal(4, 100)
    exact = x.double()
    for bad in (float("nan"), float("inf")):
        candidate = x.clone()
        candidate[2, 3] = bad
        assert "worst at [2, 3]" in wrong(check(candidate, exact, x, 1), "nan_or_inf")
        special = exact.clone()
        special[2, 3] = bad
        wrong(check(x, special, special.float(), 1), "nan_or_inf")
        right(check(special.float(), special, special.float(), 1))
        wrong(check(-special.float(), special, special.float(), 1))
        wrong(check(torch.full_like(x, bad), special, special.float(), 1), "nan_or_inf")


def test_errors_that_overflow_a_double_are_no_pass() -> None:
    exact = torch.full((2, 256), 1.5e308, dtype=torch.float64)
    far = torch.full_like(exact, 0.1e308)  # the norms of its errors are infinite, and so is what a reference as far off allows
    wrong(check(far, exact, far, 1))
    right(check(exact, exact, exact, 1))


def test_overflow_of_the_output_type_is_expected_and_its_border_is_soft() -> None:
    exact = torch.full((2, 64), 70_000.0, dtype=torch.float64)
    exact[1] = 65_510.0
    reference = exact.half()
    right(check(reference, exact, reference, 1))
    clamped = torch.full_like(reference, 65_504.0)
    wrong(check(clamped, exact, reference, 1), "nan_or_inf")
    border = reference.clone()
    border[1] = float("inf")
    right(check(border, exact, reference, 1))


def test_structure_dtype_shape_and_strides_must_match() -> None:
    x = normal(4, 6)
    good = Expected(flatten_outputs((x.double(), x.double())), flatten_outputs((x, x)))
    for candidate in (x, (x,), [x, x], (x, x, x), (x, x.half()), (x, x[:3]), (x, x.T.contiguous().T), (x, torch.nn.Parameter(x))):
        result = compare(flatten_outputs(candidate), good, Tolerance())
        assert isinstance(result, Failure)
        assert result.status is Status.WRONG_STRUCTURE
        assert "expected" in result.message
    right(compare(flatten_outputs((x, x)), good, Tolerance()))


def test_integers_are_exact_unless_the_task_allows_slack() -> None:
    levels = torch.arange(1000, dtype=torch.int8).reshape(4, 250)
    off = levels.clone()
    off[0, :3] += 1
    wrong(check(off, levels, levels, 1), "integers")
    # 1 expected of 1000, so 1 + 3 standard deviations + 1 may differ.
    slack = Tolerance(integer_slack=1, integer_share=0.001)
    assert right(check(off, levels, levels, 1, slack)) == 0.6
    off[1, :3] -= 1
    wrong(check(off, levels, levels, 1, slack), "integers")
    far = levels.clone()
    far[3, 249] += 2
    assert "worst at [3, 249]" in wrong(check(far, levels, levels, 1, slack), "integers")
    mask = torch.tensor([True, False, True])
    wrong(check(~mask, mask, mask, 1, slack))
    extreme = torch.tensor([2**63 - 1, -(2**63)])
    wrong(check(extreme - 1, extreme, extreme, 1))


def test_scalars_and_empty_outputs_are_judged() -> None:
    y = torch.tensor(3.0)
    right(check(y, y.double(), y, 1))
    wrong(check(y + 1, y.double(), y, 1))
    right(check(torch.empty(0, 3), torch.empty(0, 3).double(), torch.empty(0, 3), 1))


def test_rows_longer_than_a_tile_and_a_rest_are_covered_to_their_end() -> None:
    x = normal((1 << 20) + 77)
    right(check(x, x.double(), x, 1))
    candidate = x.clone()
    candidate[-1] += 1
    assert f"worst at [{len(x) - 1}]" in wrong(check(candidate, x.double(), x, 1))


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 300), seed=st.integers(0, 1 << 30), exponent=st.integers(-30, 30))
def test_any_order_of_summation_passes_at_any_scale(rows: int, columns: int, seed: int, exponent: int) -> None:
    x = normal(rows, columns, seed=seed) * 2.0**exponent
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(seed))
    weights = torch.exp(x[:, order] / 2.0**exponent)
    candidate = (x[:, order].cumsum(1)[:, -1:] * weights[:, order.argsort()]).contiguous()
    exact = x.double().sum(1, keepdim=True) * torch.exp(x.double() / 2.0**exponent)
    right(check(candidate, exact, x.sum(1, keepdim=True) * torch.exp(x / 2.0**exponent), columns))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40), columns=st.integers(1, 300), seed=st.integers(0, 1 << 30),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)  # fmt: skip
def test_any_single_element_that_is_ten_percent_off_fails(rows: int, columns: int, seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    exact = torch.rand(rows, columns, generator=generator, dtype=torch.float64) + 0.5
    reference = exact.to(dtype)
    at = int(torch.randint(rows * columns, (1,), generator=generator))
    candidate = reference.clone()
    candidate.view(-1)[at] *= 1.1
    assert f"worst at [{at // columns}, {at % columns}]" in wrong(check(candidate, exact, reference, columns))
    right(check(reference, exact, reference, columns))


def test_outputs_know_their_size() -> None:
    assert Outputs("*", (torch.empty(3, 5, dtype=torch.float16),)).nbytes == 30
