"""Rows of each format, from the answers of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evo.dataset.answers import START, Answer, improves, states_of, worse
from evo.dataset.columns import Format
from evo.dataset.prompts import Question, Questions
from evo.dataset.reading import Made, Run
from evo.records import CaseResult, Status
from operators.likeness import normal_form

DATA_SOURCE = "triton-evolve"


@dataclass(frozen=True)
class TaskFacts:
    """What rows say of a task.

    Attributes:
        name: Of the task.
        reference: Name or path by which the reward loads it.
        kind: Kernel kind.
        licence: SPDX identifier.
        starts: Whether it has starting kernels of its own, which the reward takes as baseline.
        questions: What can be asked of it.
    """

    name: str
    reference: str
    kind: str
    licence: str
    starts: bool
    questions: Questions


@dataclass(frozen=True)
class Row:
    """One row, with what decides where it goes.

    Attributes:
        task: Name of the task.
        key: Equal for rows that say the same.
        texts: What a model is trained on, to look for kernels of other tasks in.
        values: Column → value.
    """

    task: str
    key: tuple[str, ...]
    texts: tuple[str, ...]
    values: Mapping[str, Any]


def sft_rows(run: Run, facts: TaskFacts) -> Iterator[Row]:
    """Answers that are right and better than what they were made from, to what was asked."""
    for state in states_of(run, facts.name):
        question = facts.questions.of(state.parent)
        for answer in state.answers:
            parents = run.parents(answer.made)
            if not improves(answer, parents):
                continue
            exchanges = answer.made.proposal.exchanges
            prompt = exchanges[0].prompt if exchanges else question.prompt
            reply = exchanges[-1].reply if exchanges else answer.reply
            values = {
                "prompt": _user(prompt),
                "completion": _model(reply),
                **_where(run, facts, question),
                **_parent(state.parent, answer.made),
                **_answer(answer),
            }
            yield Row(facts.name, (facts.name, *_identity(answer)), (prompt, reply), values)


def preference_rows(run: Run, facts: TaskFacts) -> Iterator[Row]:
    """For each good answer one that failed and one that is right and slower, to the same question."""
    for state in states_of(run, facts.name):
        question = facts.questions.of(state.parent)
        for chosen in (answer for answer in state.answers if improves(answer, run.parents(answer.made))):
            others = [answer for answer in state.answers if worse(answer, chosen)]
            failed = [answer for answer in others if answer.made.failed is not None][:1]
            slower = [answer for answer in others if answer.made.failed is None][:1]
            for rejected in (*failed, *slower):
                values = {
                    "prompt": _user(question.prompt),
                    "chosen": _model(chosen.reply),
                    "rejected": _model(rejected.reply),
                    **_where(run, facts, question),
                    **_parent(state.parent, chosen.made),
                    **_answer(chosen),
                    **_rejected(rejected),
                }
                key = (facts.name, *_identity(chosen), *_identity(rejected))
                yield Row(facts.name, key, (question.prompt, chosen.reply, rejected.reply), values)


def grpo_rows(run: Run, facts: TaskFacts) -> Iterator[Row]:
    """The questions themselves: of each state that was asked about, ours and those that a model was asked."""
    for state in states_of(run, facts.name):
        question = facts.questions.of(state.parent)
        shown = (state.parent,) if state.parent is not None else ()
        yield _question_row(run, facts, question, question.prompt, "", shown)
        for answer in state.answers:
            for exchange in answer.made.proposal.exchanges[:1]:
                yield _question_row(run, facts, question, exchange.prompt, exchange.model, run.parents(answer.made))


ROWS: Mapping[Format, Callable[[Run, TaskFacts], Iterator[Row]]] = {
    Format.SFT: sft_rows,
    Format.PREFERENCE: preference_rows,
    Format.GRPO: grpo_rows,
}


def _question_row(run: Run, facts: TaskFacts, question: Question, prompt: str, model: str, shown: Sequence[Made]) -> Row:
    parent = question.parent
    extra = {
        "baseline": parent.source if parent is not None and parent.passed is not None else _start(run, facts),
        "shown": [item.source for item in shown],
        "shown_plans": sorted({item.plan_hash for item in shown} - {""}),
    }
    values = {
        "prompt": _user(prompt),
        **_where(run, facts, question),
        **extra,
        "model": model,
        **_parent(parent, None),
        "data_source": DATA_SOURCE,
        "ability": "triton",
        "reward_model": {"style": "rule", "ground_truth": facts.reference},
        "extra_info": extra,
    }
    state = tuple(part for item in shown for part in _alike(item))
    # Prompts that a model was asked differ by what was known at the time; ours, by the state and the target alone.
    key = (facts.name, run.target, model, prompt if model else "", *state)
    return Row(facts.name, key, (prompt,), values)


def _start(run: Run, facts: TaskFacts) -> str:
    """What torch.compile gave the run to start from where the task itself has nothing; else empty."""
    found = (made.source for made in run.of_task(facts.name) if made.request.operator == START and made.passed is not None)
    return "" if facts.starts else next(found, "")


def _identity(answer: Answer) -> tuple[str, ...]:
    """Equal for modules that replay alike; a tuned one replays other than the one it is of."""
    return (*_alike(answer.made), answer.source if answer.origin == "tuned" else "")


def _alike(made: Made) -> tuple[str, ...]:
    """By what it launches; by its text where that is not known, layout and names of local variables apart."""
    return (made.plan_hash or normal_form(made.source) or made.source,)


def _where(run: Run, facts: TaskFacts, question: Question) -> dict[str, Any]:
    return {
        "task": facts.reference, "kind": facts.kind, "target": run.target, "triton": run.triton, "ask": question.ask.value,
        "licence": facts.licence, "run": run.header.name,
    }  # fmt: skip


def _parent(parent: Made | None, child: Made | None) -> dict[str, Any]:
    verdict = parent.verdict if parent is not None else None
    ids = child.request.parents if child is not None else (parent.variant_id,) if parent is not None else ()
    return {
        "parents": list(ids),
        "parent_status": verdict.status.value if verdict is not None else "",
        "parent_message": parent.failed.message if parent is not None and parent.failed is not None else "",
        "parent_speedup": parent.passed.speedup if parent is not None and parent.passed is not None else None,
    }


def _answer(answer: Answer) -> dict[str, Any]:
    verdict = answer.made.passed
    assert verdict is not None, "a good answer passed"
    assert verdict.trust is not None
    assert verdict.latency_kind is not None
    return {
        "variant": answer.made.variant_id,
        "origin": answer.origin,
        "operator": answer.made.request.operator,
        "model": answer.model,
        "plan_hash": answer.made.plan_hash,
        "trust": verdict.trust.value,
        "latency_kind": verdict.latency_kind.value,
        "device": verdict.device,
        "speedup": verdict.speedup,
        "speedup_low": verdict.fitness,
        "tuned_gain": answer.gain if answer.origin == "tuned" else None,
        "error_ratio": verdict.error_ratio,
        "cases": [_case(case) for case in verdict.cases],
    }


def _case(case: CaseResult) -> dict[str, Any]:
    return {
        "case": case.case, "configuration": json.dumps(dict(case.configuration)), "latency_us": case.latency_us,
        "baseline_us": case.baseline_us, "speedup": case.speedup, "speedup_low": case.speedup_low, "speedup_high": case.speedup_high,
        "pairs": case.pairs, "error_ratio": case.error_ratio,
    }  # fmt: skip


def _rejected(answer: Answer) -> dict[str, Any]:
    verdict = answer.made.verdict
    assert verdict is not None, "a worse answer was judged"
    return {
        "rejected_variant": answer.made.variant_id,
        "rejected_origin": answer.origin,
        "rejected_model": answer.model,
        "rejected_status": verdict.status.value,
        "rejected_message": verdict.message,
        "rejected_speedup": verdict.speedup if verdict.status is Status.PASSED else None,
    }


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _model(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]
