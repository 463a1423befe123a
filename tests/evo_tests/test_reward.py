"""The reward's formula, its two signatures, and what it makes of hostile replies and of machines that fail."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import evo.reward
from evo.cluster.judging import Judged, Judging, Submission
from evo.errors import DeviceError, InputError
from evo.evaluation.base import Claim, Evaluator, WorkItem
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import CaseResult, Configuration, Evaluation, LatencyKind, Stage, Status, TrustLevel
from evo.reward import verl
from evo.reward.formula import NEUTRAL, parts_of
from evo.reward.rewarding import Rewarding
from evo.reward.trl import TritonReward
from evo.tasks.loading import load_task, starting_sources
from evo.tracing.imports import foreign_imports
from tests.evo_tests.dataset_store import own_task
from tests.evo_tests.exploits.collection import FOLDER
from tests.evo_tests.reward_judges import Told, reply_of

SETTINGS = EvaluationSettings(target="cuda:90", tune_trials=0, start_tune_trials=0)
SOFTMAX = starting_sources(load_task("softmax"))[0]


def passed(
    low: float, kind: LatencyKind = LatencyKind.MEASURED, trust: TrustLevel = TrustLevel.REPLAYED, variant: str = "v"
) -> Evaluation:
    case = CaseResult("c", Configuration(), 0.5, 10.0, 10.0 * low, low * 1.1, low, low * 1.2, 8, 0)
    return Evaluation(variant, Status.PASSED, Stage.TIME, "d", "p", trust, kind, fitness=low, cases=(case,))


def failed(status: Status, stage: Stage) -> Evaluation:
    return Evaluation("v", status, stage, "d", message="row 3\nis wrong", signature="s")


@given(st.floats(1e-3, 1e3))
def test_speed_is_the_logistic_function_of_the_lower_bound(low: float) -> None:
    found = parts_of(passed(low))
    assert found.measured
    assert found.reward == pytest.approx(1 / (1 + math.exp(-math.log(low))))
    assert 0 < found.reward < 1
    assert parts_of(passed(1 / low)).reward == pytest.approx(1 - found.reward)


def test_an_estimate_is_no_speed() -> None:
    for low in (0.1, 100.0):
        found = parts_of(passed(low, LatencyKind.MODELLED, TrustLevel.INTERPRETED))
        assert (found.reward, found.measured) == (NEUTRAL, False)


@pytest.mark.parametrize(
    ("verdict", "rule", "execution"),
    [
        (failed(Status.REJECTED, Stage.LINT), 0, 0),
        (failed(Status.REJECTED, Stage.TRACE), 0, 0),
        (failed(Status.UNTRACEABLE, Stage.TRACE), 0, 0),
        (failed(Status.COMPILE_ERROR, Stage.COMPILE), 1, 0),
        (failed(Status.WRONG_VALUES, Stage.GATE), 1, 0),
        (failed(Status.TIMEOUT, Stage.GATE), 1, 0),
        (passed(3.0, trust=TrustLevel.HOSTED), 0, 0),
        (Evaluation("v", Status.DUPLICATE, Stage.TRACE, "d", plan_hash="p", duplicate_of="w"), 0, 0),
    ],
    ids=lambda item: item.status.value if isinstance(item, Evaluation) else "",
)
def test_what_fails_a_part_earns_nothing_and_says_why(verdict: Evaluation, rule: float, execution: float) -> None:
    found = parts_of(verdict)
    assert (found.rule, found.execution, found.reward) == (rule, execution, 0.0)
    assert found.reason
    assert "\n" not in found.reason


def test_trl_gets_a_float_per_completion_and_none_where_nothing_could_be_judged() -> None:
    answers = {
        "good": Judged(passed(2.0)),
        "bad": Judged(failed(Status.WRONG_VALUES, Stage.GATE)),
        "lost": Judged(None, "no GPU"),
    }
    judges, logged, shares = Told(lambda item: answers[item.reply]), {}, {}
    reward = TritonReward(tasks="data", judges=judges)
    found = reward(
        prompts=["p"] * 3,
        completions=["good", [{"role": "assistant", "content": "bad"}], "lost"],
        completion_ids=[[1]] * 3,
        task=["softmax", "softmax", "nearby.py"],
        shown=[["a"], None, []],
        shown_plans=[["h"], None, []],
        kind=["x"] * 3,
        log_extra=lambda column, values: logged.update({column: values}),
        log_metric=lambda name, value: shares.update({name: value}),
        trainer_state=object(),
    )
    assert found == [pytest.approx(2 / 3), 0.0, None]
    assert judges.asked[0] == Submission("softmax", "good", "", ("a",), ("h",))
    assert judges.asked[2].task == str(Path("data", "nearby.py").resolve())
    assert [text.split(":")[0] for text in logged["verdict"]] == ["passed", "gate", "no GPU"]
    assert shares == {"triton/judged": pytest.approx(2 / 3), "triton/rule": 1.0, "triton/correct": 0.5, "triton/measured": 0.5}
    assert reward.__name__ == "triton_reward"


def test_a_data_set_without_tasks_is_refused_at_the_first_call() -> None:
    with pytest.raises(InputError, match="no column task"):
        TritonReward(judges=Told(lambda item: Judged(None)))(["p"], ["c"], other=["x"])


def loaded_as_verl_does() -> Any:
    """From the file, as a module of another name."""
    spec = importlib.util.spec_from_file_location("custom_module", evo.reward.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compute_score


def test_verl_gets_the_score_and_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"good": Judged(passed(3.0)), "lost": Judged(None, "no GPU")}
    judges = Told(lambda item: answers[item.reply])
    monkeypatch.setattr(verl, "Rewarding", lambda settings: Rewarding(settings, judges))
    monkeypatch.setattr(verl, "_REWARDING", {})
    compute_score = loaded_as_verl_does()
    more = {"reward_router_address": None, "device": "cpu"}
    found = compute_score(
        data_source="d", solution_str="good", ground_truth="softmax", extra_info={"shown": ["a"], "index": 3}, **more
    )
    assert found == {"score": 0.75, "judged": 1.0, "rule": 1.0, "execution": 1.0, "speed": 0.75, "measured": 1.0}
    assert judges.asked[-1].shown == ("a",)
    lost = compute_score(data_source="d", solution_str="lost", ground_truth="softmax", **more)
    assert (lost["score"], lost["judged"], set(lost)) == (0.0, 0.0, set(found))
    with pytest.raises(InputError, match="ground_truth"):
        compute_score("d", "good", "")


class Scripted(SimulatedEvaluator):
    """Does what the source says."""

    def __init__(self) -> None:
        super().__init__(0)
        self.closed = threading.Event()
        self.items: list[WorkItem] = []

    def evaluate(self, item: WorkItem, claim: Claim) -> Evaluation:
        self.items.append(item)
        if "hang" in item.variant.source:
            self.closed.wait(600)
        if "broken" in item.variant.source:
            raise DeviceError("the GPU fell off the bus")
        owner = claim("plan of a copy" if "cop" in item.variant.source else "another plan", item.variant.variant_id)
        if owner is not None:
            return Evaluation(item.variant.variant_id, Status.DUPLICATE, Stage.TRACE, "d", plan_hash="p", duplicate_of=owner)
        return passed(1.0, variant=item.variant.variant_id)

    def close(self) -> None:
        self.closed.set()


Built = list[Scripted]


@pytest.fixture
def built() -> Built:
    return []


def scripted(built: Built, device: str = "cpu:cuda:90", deadline_s: float = 20.0) -> Judging:
    def build(tasks: Mapping[str, Any], settings: EvaluationSettings, device: str) -> Evaluator:
        built.append(Scripted())
        return built[-1]

    return Judging(device, SETTINGS, deadline_s, build)


def module(word: str) -> str:
    return f"def softmax(x):\n    return {word}\n"


def test_a_reply_that_hangs_is_a_timeout_and_the_next_one_has_a_new_evaluator(built: Built) -> None:
    judging = scripted(built, deadline_s=1.0)
    started = time.monotonic()
    late = judging.judge(Submission("softmax", reply_of(module("hang"))))
    assert time.monotonic() - started < 60, "it would hang for ten minutes"
    assert late.evaluation is not None
    assert late.evaluation.status is Status.TIMEOUT
    assert parts_of(late.evaluation).reward == 0.0
    assert built[0].closed.is_set()
    after = judging.judge(Submission("softmax", reply_of(module("x"))))
    assert after.evaluation is not None
    assert (after.evaluation.status, len(built)) == (Status.PASSED, 2)


def test_a_broken_machine_is_no_verdict_after_one_more_try(built: Built) -> None:
    judging = scripted(built)
    found = judging.judge(Submission("softmax", reply_of(module("broken"))))
    assert found == Judged(None, "DeviceError: the GPU fell off the bus")
    assert len(built) == 2
    unknown = judging.judge(Submission("softmaxx", reply_of(module("x"))))
    assert unknown.evaluation is None
    assert "softmaxx" in unknown.problem


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("", "no Python module"),
        ("I cannot do that.", "no Python module"),
        ("```python\ndef other(x):\n    return x\n```", "does not define softmax"),
        (f"{reply_of(module('a'))}{reply_of(module('b'))}", "2 different modules"),
        ("x" * 300_000, "300000 bytes"),
        (reply_of("import os\n" + module("x")), "imports os"),
        (reply_of(SOFTMAX), "the module that was shown"),
        (
            reply_of(SOFTMAX.replace("numerator", "above").replace("import torch\n", "import torch\n\n# mine\n")),
            "the module that was shown",
        ),
        (f"<think>{reply_of(module('a'))}</think>{reply_of(SOFTMAX)}", "the module that was shown"),
    ],
    ids=["empty", "apology", "entry", "two", "long", "imports", "parent", "renamed", "thought"],
)
def test_a_reply_that_is_no_answer_is_refused_without_being_run(built: Built, reply: str, says: str) -> None:
    found = scripted(built).judge(Submission("softmax", reply, shown=(SOFTMAX,)))
    assert found.evaluation is not None
    assert says in found.evaluation.message
    assert parts_of(found.evaluation).rule == 0.0
    assert built == []


def test_a_kernel_that_launches_what_was_shown_is_no_answer(built: Built) -> None:
    judging = scripted(built)
    found = judging.judge(Submission("softmax", reply_of(module("copy")), known=("plan of a copy",)))
    assert found.evaluation is not None
    assert parts_of(found.evaluation).reward == 0.0


def test_what_launches_the_same_as_what_was_shown_is_found_without_its_plan_hash(built: Built) -> None:
    """A data set may be of another machine, where the same kernel has another plan, or have no such column."""
    judging = scripted(built)
    for count in (2, 3):
        found = judging.judge(Submission("softmax", reply_of(module("copied")), shown=(module("copy"),), known=("of elsewhere",)))
        assert found.evaluation is not None
        assert found.evaluation.status is Status.DUPLICATE
        assert parts_of(found.evaluation).reward == 0.0
        assert len(built[0].items) == count, "what was shown is traced once"
    other = judging.judge(Submission("softmax", reply_of(module("x")), shown=(module("copy"),)))
    assert other.evaluation is not None
    assert parts_of(other.evaluation).reward > 0


def test_speed_is_measured_against_the_baseline_of_the_row(built: Built) -> None:
    judging = scripted(built, device="gpu")
    for baseline, count in (("", 2), ("", 3), (module("slow"), 5), (module("slow"), 6)):
        judging.judge(Submission("softmax", reply_of(module("x")), baseline))
        assert len(built[0].items) == count, "each baseline is tuned once"
        used = built[0].items[-1].baseline
        assert used is not None
        assert used.variant.source == (baseline or SOFTMAX)
    lost = judging.judge(Submission("softmax", reply_of(module("x")), module("broken")))
    assert lost.evaluation is None


def test_a_kernel_that_nothing_stands_against_has_no_speed(built: Built, tmp_path: Path) -> None:
    own = own_task(tmp_path)
    own.write_text(own.read_text().replace('("squares_kernel.py",)', "()"))
    found = scripted(built, device="gpu").judge(Submission(str(own), reply_of("def squares(x):\n    return x\n")))
    assert found.evaluation is not None
    assert built[0].items[0].baseline is None
    assert not parts_of(
        dataclasses.replace(found.evaluation, cases=(dataclasses.replace(found.evaluation.cases[0], pairs=0),))
    ).measured


def test_modules_that_ran_with_their_own_python_are_not_believed_to_be_correct(built: Built) -> None:
    class Interpreted(Scripted):
        def evaluate(self, item: WorkItem, claim: Claim) -> Evaluation:
            if "wrong" in item.variant.source:
                return failed(Status.WRONG_VALUES, Stage.GATE)
            return passed(1.0, LatencyKind.MODELLED, TrustLevel.INTERPRETED, item.variant.variant_id)

    judging = Judging("cpu:cuda:90", SETTINGS, 20.0, lambda *_: Interpreted())
    name = str(FOLDER / "tasks" / "scaled.py")
    entry = load_task(name).entry
    right, wrong = (
        judging.judge(Submission(name, reply_of(f"def {entry}(*x):\n    return {word}\n"))) for word in ("x", "wrong")
    )
    assert right.evaluation is None
    assert "only on a GPU" in right.problem
    assert wrong.evaluation is not None


def test_what_could_not_be_judged_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    reward = TritonReward(judges=Told(lambda item: Judged(None, "no GPU")))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert reward(["p"], ["c"], task=["softmax"]) == [None]
    assert sum("no GPU" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch, triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\nimport math\n", ()),
        ("import os\nfrom triton import testing\nimport triton.testing\n", ("os", "triton.testing")),
        ("def f():\n    from . import x\n    import torch.utils.cpp_extension\n", (".", "torch.utils.cpp_extension")),
        ("def f(:", ()),
    ],
)
def test_imports_are_read_from_the_text(source: str, found: tuple[str, ...]) -> None:
    assert foreign_imports(source) == found


def test_no_starting_kernel_imports_what_is_foreign() -> None:
    folder = Path(evo.__path__[0]) / "tasks" / "starts"
    assert {path.name: found for path in folder.glob("*.py") if (found := foreign_imports(path.read_text()))} == {}
