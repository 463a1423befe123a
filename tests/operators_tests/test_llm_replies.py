"""Replies as edits, and the one correction of a reply that cannot be used: what is applied, what is refused, what it costs."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo.errors import ModelError, SpendLimitError
from evo.records import Evaluation, Exchange, NoProposal, Proposal, Stage, Status, Usage, Variant
from operators.base import Context, Operator, Parent
from operators.llm.asking import EDITS_FROM, TAIL
from operators.llm.generate import LlmGenerate
from operators.llm.optimize import LlmOptimize
from operators.llm.repair import LlmRepair
from operators.llm.restart import LlmRestart, repetition
from operators.models.base import RequestError
from operators.models.replaying import Answer, ReplayModel, Reply
from operators.prompting import UnusableReplyError, lesson_line
from operators.replies import module_of
from operators.search_replace import Edit, UnusableEditError, apply_edits, read_edits

MODULE = "import triton\n\nBLOCK = 64\n\n\ndef f(x):\n    y = x\n    return y\n\n\ndef g(x):\n    y = x\n    return y\n"
LONG = MODULE + "# padding that makes it long\n" * (EDITS_FROM // 28)
CONTEXT = Context("t", "Returns its argument.", "f", "def f(x): return x", frozenset(), "cuda:90", "3.9.0")
PRICE = Usage(input_tokens=100, output_tokens=20, dollars=0.25)
GOOD = "Strategy: larger blocks.\n```python\nBLOCK = 128\n\n\ndef f(x):\n    return x\n```"


def edit(search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE"


def propose(operator: type[Operator], model: ReplayModel, source: str = MODULE, **context: object) -> Proposal | NoProposal:
    build: type = operator
    parents = (Parent(Variant("t", source)),) if operator.arity else ()
    where = dataclasses.replace(CONTEXT, **context)  # type: ignore[arg-type]
    return asyncio.run(build(model).propose(parents, where, np.random.default_rng(0)))


def test_edits_change_only_what_they_name() -> None:
    first, second = "    y = x\n    return y\n\n\ndef g(x):", "    return x\n\n\ndef g(x):"
    reply = f"Strategy: larger blocks.\n```text\n{edit('BLOCK = 64', 'BLOCK = 128')}\n```\n{edit(first, second)}"
    assert module_of(reply, "f", MODULE) == MODULE.replace("64", "128").replace(first, second)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (edit("    y = x", "    y = x + 0"), "edit 1 looks for stands 2 times in the module, at lines 7, 12"),
        (
            edit("BLOCK = 32", "BLOCK = 128"),
            "does not stand in the module; the lines most like it, from line 3 on, are:\nBLOCK = 64",
        ),
        (edit("  BLOCK = 64", "BLOCK = 128"), "most like it, from line 3 on"),
        (edit("", "import os"), "edit 1 looks for nothing"),
        (edit("BLOCK = 64", "BLOCK = 1") + "\n" + edit("BLOCK = 64\n\n\ndef f(x):", "def f(x):"), "overlaps"),
        ("<<<<<<< SEARCH\nBLOCK = 64\n=======\nBLOCK = 1", "edit 1 has no line >>>>>>> REPLACE"),
        ("<<<<<<< SEARCH\nBLOCK = 64\n>>>>>>> REPLACE", "edit 1 has no line ======="),
        (edit("BLOCK = 64", "BLOCK = ("), "after the edits cannot be used: line 3"),
        (edit("def f(x):", "def h(x):"), "does not define f"),
        (edit("BLOCK = 64", "BLOCK = 1") + "\n```python\ndef f(x):\n    return x\n```", "edits and a whole module"),
        ("\n".join(edit("BLOCK = 64", "BLOCK = 1") for _ in range(41)), "has 41 edits; allowed: 1 to 40"),
    ],
)
def test_an_edit_that_is_not_exact_is_refused_with_its_reason(reply: str, said: str) -> None:
    with pytest.raises(UnusableReplyError) as caught:
        module_of(reply, "f", MODULE)
    assert said in str(caught.value)


def test_edits_of_nothing_are_no_module() -> None:
    with pytest.raises(UnusableReplyError, match="no Python module"):
        module_of(edit("BLOCK = 64", "BLOCK = 1"), "f", None)


@given(
    st.lists(st.text("abc =\n", min_size=1, max_size=20), min_size=1, max_size=8).map("\n".join),
    st.data(),
)
def test_an_edit_of_any_lines_that_stand_once_does_just_that(source: str, data: st.DataObject) -> None:
    lines = source.split("\n")
    start = data.draw(st.integers(0, len(lines) - 1))
    size = data.draw(st.integers(1, len(lines) - start))
    search = tuple(lines[start : start + size])
    places = [at for at in range(len(lines) - size + 1) if tuple(lines[at : at + size]) == search]
    edits = [Edit(search, ("new", "lines"))]
    if len(places) == 1:
        assert apply_edits(source, edits).split("\n") == [*lines[:start], "new", "lines", *lines[start + size :]]
    else:
        with pytest.raises(UnusableEditError, match=f"stands {len(places)} times"):
            apply_edits(source, edits)


def test_the_order_of_edits_means_nothing_and_no_edit_sees_another() -> None:
    edits = read_edits(edit("BLOCK = 64", "BLOCK = 65\nBLOCK = 64") + "\n" + edit("import triton", "BLOCK = 64"))
    assert apply_edits(MODULE, edits) == apply_edits(MODULE, tuple(reversed(edits)))


def test_long_modules_are_edited_and_short_ones_written_anew() -> None:
    short, long = ReplayModel([GOOD]), ReplayModel([f"Strategy: one.\n{edit('BLOCK = 64', 'BLOCK = 128')}"])
    assert isinstance(propose(LlmOptimize, short), Proposal)
    outcome = propose(LlmOptimize, long, LONG)
    assert isinstance(outcome, Proposal)
    assert outcome.source == LONG.replace("64", "128")
    assert "form **module**" in short.prompts[0].body
    assert "form **edits**" in long.prompts[0].body
    assert short.prompts[0].stable == long.prompts[0].stable, "the form must not cost the cached prefix"


def test_a_whole_module_is_taken_where_edits_were_asked_for() -> None:
    assert isinstance(propose(LlmOptimize, ReplayModel([GOOD]), LONG), Proposal)


BROKEN: Sequence[tuple[str, str]] = [
    ("Strategy: s.\n```python\ndef f(x:\n    return x\n```", "line 1"),
    ("```python\ndef g(x):\n    return x\n```", "does not define f"),
    (f"{GOOD}\n```python\ndef f(x):\n    return 2 * x\n```", "2 different modules"),
    (edit("no such line", "x"), "does not stand in the module"),
]


@pytest.mark.parametrize(("reply", "said"), BROKEN)
def test_a_broken_reply_gets_one_cheap_correction_whose_price_is_added(reply: str, said: str) -> None:
    model = ReplayModel([Reply(reply, usage=PRICE), Reply(GOOD, usage=PRICE)])
    outcome = propose(LlmOptimize, model)
    assert isinstance(outcome, Proposal)
    first, second = model.prompts
    assert said in second.body
    assert reply.splitlines()[-1] in second.body
    assert second.stable == ()
    assert len(second.text) < len(first.text) / 3, "the conversation is not paid for again"
    assert [item.usage.dollars for item in outcome.exchanges] == [0.25, 0.25]
    assert outcome.strategy == "larger blocks."


def test_a_correction_shows_the_end_of_a_long_reply_only() -> None:
    model = ReplayModel(["```python\n" + "# x\n" * 20_000 + "def f(x:\n```", GOOD])
    propose(LlmOptimize, model)
    assert len(model.prompts[1].text) < TAIL + 2_000


def test_there_is_no_second_correction() -> None:
    model = ReplayModel([Reply(BROKEN[0][0], usage=PRICE)] * 3)
    outcome = propose(LlmOptimize, model)
    assert isinstance(outcome, NoProposal)
    assert outcome.failed
    assert outcome.reason.startswith("also after a correction: ")
    assert len(model.prompts) == len(outcome.exchanges) == 2


@pytest.mark.parametrize("answer", ["I am sorry.", "", Reply(BROKEN[0][0], "refusal"), Reply(BROKEN[0][0], "max_tokens")])
def test_apologies_refusals_and_cut_off_replies_are_not_corrected(answer: Answer) -> None:
    model = ReplayModel([answer, GOOD])
    assert isinstance(propose(LlmOptimize, model), NoProposal)
    assert len(model.prompts) == 1


def failing(exchange: Exchange) -> RequestError:
    return RequestError("overloaded", dataclasses.replace(exchange, stop_reason="error"))


@pytest.mark.parametrize("error", [SpendLimitError("no money"), ModelError("down")])
def test_what_was_paid_is_kept_when_the_correction_fails(error: ModelError) -> None:
    outcome = propose(LlmOptimize, ReplayModel([Reply(BROKEN[0][0], usage=PRICE), error]))
    assert isinstance(outcome, NoProposal)
    assert [item.usage.dollars for item in outcome.exchanges] == [0.25]
    assert str(error) in outcome.reason


def test_a_request_that_fails_as_a_correction_is_paid_for_too() -> None:
    paid = propose(LlmOptimize, ReplayModel([Reply(GOOD, usage=PRICE)]))
    outcome = propose(LlmOptimize, ReplayModel([Reply(BROKEN[0][0], usage=PRICE), failing(paid.exchanges[0])]))
    assert isinstance(outcome, NoProposal)
    assert [item.usage.dollars for item in outcome.exchanges] == [0.25, 0.25]


def test_restart_does_not_take_an_abandoned_strategy_in_almost_the_same_words() -> None:
    tabu = ("larger blocks along the row",)
    same, new = (
        GOOD.replace("larger blocks.", "Use larger blocks along each row."),
        GOOD.replace("larger blocks.", "split the reduction."),
    )
    model = ReplayModel([same, new])
    outcome = propose(LlmRestart, model, tabu=tabu)
    assert isinstance(outcome, Proposal)
    assert outcome.strategy == "split the reduction."
    assert "was abandoned before (larger blocks along the row)" in model.prompts[1].body
    assert isinstance(propose(LlmRestart, ReplayModel([same, same]), tabu=tabu), NoProposal)
    assert repetition("split the reduction over two kernels", tabu) == ""


def test_strategies_that_share_words_by_chance_are_two() -> None:
    tabu = ("Use split-K and a persistent kernel with warp specialisation",)
    assert repetition("Use a persistent kernel", tabu) == ""
    assert repetition("Use the kernel with atomics", tabu) == ""
    assert repetition("a persistent kernel with split-K and specialisation of warps", tabu)
    assert repetition("Atomics", ("use atomics",))


def test_generate_needs_no_reference_text() -> None:
    model = ReplayModel([GOOD])
    outcome = propose(LlmGenerate, model, reference_source="")
    assert isinstance(outcome, Proposal)
    assert "Returns its argument." in model.prompts[0].stable[1]
    assert "def f(x): return x" not in model.prompts[0].text


def test_lessons_are_read_and_shown() -> None:
    assert lesson_line("Strategy: a.\n**Lesson:** masks need an `other`.\n```\nLesson: not this\n```") == "masks need an `other`."
    assert lesson_line("Strategy: a.") == ""
    model = ReplayModel([GOOD])
    verdict = Evaluation("v", Status.COMPILE_ERROR, Stage.COMPILE, "d", message="line 3: has no attribute 'tanh'")
    parents = (Parent(Variant("t", MODULE), verdict),)
    where = dataclasses.replace(CONTEXT, lessons=("there is no block pointer",), worked=("two rows per program",))
    asyncio.run(LlmRepair(model).propose(parents, where, np.random.default_rng(0)))
    body = model.prompts[0].body
    for text in ("there is no block pointer", "two rows per program", ">    3 BLOCK = 64", "2 * tl.sigmoid(2 * x) - 1"):
        assert text in body
