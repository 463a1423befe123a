"""Figures of suites: shares over all problems, failures as 1×, fast_p by hand, peers apart, and a README that says what results say."""

from __future__ import annotations

import csv
import io
import math
import time
from pathlib import Path

import pytest
import torch

from evo.records import content_id
from evo.suites.base import Against
from evo.suites.comparing_child import Side, measured
from evo.suites.families import family_of
from evo.suites.figures import figures, geometric_mean, pass_at, share
from evo.suites.jobs import Searched
from evo.suites.peers import PEERS
from evo.suites.registry import find_suite
from evo.suites.results import csv_of, page, results_of
from evo.suites.rows import Row
from experiments.suite_tables import merged, section, with_section

ROOT = Path(__file__).resolve().parents[2]
SESSION = {
    "gpu": "NVIDIA H200", "driver": "1", "torch": "2", "triton": "3", "python": "3.11", "cores": 2, "commit": "abc", "command": "it",
}  # fmt: skip


def row(name: str, eager: float, compiled: float, low: float | None = None, state: str = "verified") -> Row:
    over = {
        side: (value, (low or value * 0.99), value * 1.01) for side, value in (("eager", eager), ("compile", compiled)) if value
    }
    return Row(
        name, name, "norm", state, reason="" if state == "verified" else "read: a bad layout | of it", called=state == "verified",
        differs=True, trust="replayed", device_speedup=(eager, low or eager * 0.99, eager * 1.01) if eager else (0.0, 0.0, 0.0),
        call_us={"best": (10.0,), "eager": (10.0 * eager,)} if eager else {}, call_speedup=over, own_speedup=eager,
    )  # fmt: skip


ROWS = (row("a", 2.0, 1.2), row("b", 1.01, 0.9, low=1.005), row("c", 0.0, 0.0, state="refused"), row("d", 0.6, 0.55))


def test_every_share_is_over_all_problems_and_fast_p_is_what_counting_by_hand_gives() -> None:
    found = figures(ROWS, Against.TORCH, {"1": None})
    assert found["execution_accuracy"]["count"] == 3
    assert found["execution_accuracy"]["of"] == 4
    fast = {p: item["count"] for p, item in found["sides"]["eager"]["fast_p"].items()}
    assert fast == {"0": 3, "0.5": 3, "0.8": 2, "1": 2, "1.5": 1, "2": 0}
    # The best of the compilers is the fastest one, so a speedup over it is the smallest of the speedups.
    assert {p: item["count"] for p, item in found["sides"]["best"]["fast_p"].items()}["1"] == 1
    assert found["faster_on_device"]["count"] == 1, "a lower bound of 1.005 is not above 1.02"


def test_failures_count_as_one_and_the_mean_over_successes_is_apart() -> None:
    mean = geometric_mean([4.0, 0.0])
    assert mean.point == pytest.approx(2.0)
    assert (mean.over, mean.measured) == (2, 1)
    assert mean.low <= mean.point <= mean.high
    found = figures(ROWS, Against.TORCH, {})
    assert found["own_speedup"]["point"] == pytest.approx((2.0 + 1.01 + 0.6) / 3)
    assert found["sides"]["eager"]["geometric_mean"]["point"] == pytest.approx(math.exp(math.log(2.0 * 1.01 * 0.6) / 4))


def test_wilsons_interval_holds_at_the_ends() -> None:
    assert share(0, 10).low == 0.0
    assert share(0, 10).high == pytest.approx(0.2775, abs=1e-3)
    assert share(10, 10).high == pytest.approx(1.0)
    assert share(0, 0).value == 0.0


def test_pass_at_k_is_over_problems_that_were_sampled_often_enough() -> None:
    sampled = Row("a", "a", "norm", "verified", sampled=4, correct=1)
    assert pass_at([sampled, *ROWS], 4, lambda n, c, k: float(c > 0)) == 1.0
    assert pass_at(ROWS, 1, lambda n, c, k: 1.0) is None


def test_tables_name_every_refusal_and_keep_others_apart() -> None:
    results = results_of(find_suite("kernelbench-1"), ROWS, SESSION, "gpu", {"1": None})
    text = page(results)
    assert "| c | refused | read: a bad layout \\| of it |" in text
    assert text.index("## Published by others") < text.index("AutoTriton") < text.index("## fast_p")
    assert "not sampled" in text
    lines = list(csv.DictReader(io.StringIO(csv_of(results))))
    assert [line["state"] for line in lines] == ["verified", "verified", "refused", "verified"]
    assert lines[0]["eager_over_best"] == "2"
    assert lines[2]["reason"] == "read: a bad layout | of it"


def test_without_a_gpu_no_speed_is_shown() -> None:
    rows = [Row("a", "a", "norm", "verified", called=True, trust="interpreted", latency_kind="modelled")]
    text = page(results_of(find_suite("tritonbench-g"), rows, SESSION, "cpu:cuda:90", {}))
    assert "No speed is claimed" in text
    assert "×" not in text.split("## Published by others")[0].split("|---|")[-1].replace("1×", "").replace("1.02×", "")


def test_calls_are_compared_in_rounds_and_a_side_that_fails_is_named() -> None:
    failed: dict[str, str] = {}
    x = torch.ones(1000)

    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not on this machine")

    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(2e-3)
        return x + 1

    sides = {"best": Side(lambda x: x + 1, [(x,)]), "eager": Side(slow, [(x,)]), "compile": Side(broken, [(x,)])}
    found = measured(sides, "case", 5, "cpu", failed, 30.0)
    assert found is not None
    assert failed == {"compile": "RuntimeError: not on this machine"}
    assert set(found["us"]) == {"best", "eager"}
    assert found["us"]["eager"] > 2000.0
    assert len(found["ratios"]["eager"]) == 5
    assert min(found["ratios"]["eager"]) > 0, "the logarithm of a slower side's time over ours"
    assert measured({"best": Side(broken, [(x,)])}, "case", 2, "cpu", failed, 30.0) is None


def test_a_side_that_compiles_for_too_long_is_named_and_the_others_are_timed() -> None:
    def endless(x: torch.Tensor) -> torch.Tensor:
        time.sleep(600)
        return x

    failed: dict[str, str] = {}
    x = torch.ones(10)
    sides = {"best": Side(lambda x: x + 1, [(x,)]), "max-autotune": Side(endless, [(x,)])}
    found = measured(sides, "case", 2, "cpu", failed, 0.1)
    assert found is not None
    assert set(found["us"]) == {"best"}
    assert "within 0.1 s" in failed["max-autotune"]


def test_peers_name_their_hardware_and_source() -> None:
    assert all(peer.hardware and peer.source and peer.suites for peer in PEERS)


def test_a_larger_budget_goes_on_and_a_smaller_one_is_done() -> None:
    ended = Searched("the budget of 24 evaluations is used", True, 24, None, "gpu")
    assert ended.serves(24, None)
    assert ended.serves(8, None)
    assert not ended.serves(40, None)
    assert not Searched("the time for this session is up", False, 24, None, "gpu").serves(24, None)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("23_Softmax", "reduction"),
        ("l2_norm_bwd", "norm"),
        ("int4_matmul", "quantisation"),
        ("conv2d", "convolution"),
        ("attn_fwd_causal", "attention"),
        ("relu", "pointwise"),
        ("89_cumsum", "scan"),
        ("98_KLDivLoss", "loss"),
    ],
)
def test_families_are_told_from_names(name: str, family: str) -> None:
    assert family_of(name)[0] == family


def test_the_readme_says_what_the_committed_results_say() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert content_id(with_section(readme, section())) == content_id(readme), "run python -m experiments.suite_tables"


def test_suites_that_are_counted_anew_stand_where_they_stood() -> None:
    known = [{"suite": "one", "rows": 1}, {"suite": "two", "rows": 2}]
    new = [{"suite": "three", "rows": 3}, {"suite": "one", "rows": 9}]
    assert merged(known, new) == [{"suite": "one", "rows": 9}, {"suite": "two", "rows": 2}, {"suite": "three", "rows": 3}]
