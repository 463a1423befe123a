"""What the scripts that measure rewrites and crossover make of outcomes: counts, ends, and what reaches the page of operators."""

from experiments.crossover_measured import beats_both, kind_of
from experiments.crossover_measured import rows as crossover_rows
from experiments.rewrite_effects import page, rows
from operators.table import effects

SESSION = dict.fromkeys(("command", "gpu", "driver", "torch", "triton", "python", "commit"), "x") | {"cores": 2}


def outcome(rewrite, cases, status="passed", task="softmax"):
    return {"task": task, "rewrite": rewrite, "strategy": "s", "child": rewrite + task, "device": "NVIDIA H200", "status": status,
            "message": "a | b", "cases": cases}  # fmt: skip


KNOWN = [
    outcome("swap", [["a", 1.2, 1.1, 1.3, 32], ["b", 0.9, 0.85, 0.95, 32]]),
    outcome("swap", [["c", 1.0, 0.99, 1.01, 32]], task="layer_norm"),
    outcome("swap", [], status="wrong_values", task="rope"),
    outcome("hint", [], status="compile_error"),
]


def test_cases_count_as_faster_or_slower_where_their_interval_leaves_one_out():
    hint, swap = rows(KNOWN)
    assert (swap["children"], swap["passed"], swap["cases"], swap["faster"], swap["slower"]) == (3, 2, 3, 1, 1)
    assert (swap["median"], swap["best"][:2], swap["worst"][:2]) == (1.0, ("softmax", "a"), ("softmax", "b"))
    assert (hint["cases"], hint["median"], hint["best"]) == (0, None, None)
    text = page(SESSION, [hint, swap], KNOWN)
    assert "1.200 [1.100, 1.300] (softmax a)" in text
    assert "| rope | swap | wrong_values | a / b |" in text


def test_the_page_of_operators_gets_measured_effects_and_no_modelled_ones():
    results = {"device": "NVIDIA H200", "rows": rows(KNOWN)}
    assert effects(results) == {"swap": "1.00 (0.90 … 1.20), 3 cases: 1 faster, 1 slower"}
    assert effects(results | {"device": "cuda:90 (modelled)"}) == {}
    assert effects({}) == {}


def child(strategy, low, status="passed", parents=(1.0, 1.1)):
    return {
        "task": "softmax",
        "device": "d",
        "strategy": strategy,
        "parent_speedups": list(parents),
        "status": status,
        "speedup_low": low,
    }


def test_a_child_beats_both_parents_only_beyond_its_interval():
    made = [
        child("knobs A of the second parent", 1.2),
        child("loop 1 of k of the second parent", 1.05),
        child("softmax of the second parent with its kernels", None, "wrong_values"),
        child("x = tl.load(p) of k of the second parent", 1.11),
    ]
    assert [beats_both(item) for item in made] == [True, False, False, True]
    assert [kind_of(item) for item in made] == ["knobs", "loop", "entry", "statement"]
    assert crossover_rows(made)[-1] == {"exchange": "all", "tasks": 1, "children": 4, "passed": 3, "beat_both_parents": 2}
