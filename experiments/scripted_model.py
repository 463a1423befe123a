"""A language model by script: it reads our prompts as a model would, and answers from operators that follow rules.

Whole searches with "a model" so repeat exactly, without an endpoint, in tests and in comparisons of search policies. Its answers depend on
nothing but the prompt. Now and then it refuses, apologises, or breaks the syntax of its module, as models do; a correction mends that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from evo.records import Proposal, Usage, Variant, content_id
from evo.search.toy import FLAGS, KNOBS, LEVELS, ToyCrossover, ToyFlag, ToyKnob, genes_of, render
from operators.base import Context, Operator, Parent
from operators.models.base import Prompt
from operators.models.replaying import ReplayModel, Reply

ROLES = {
    "# The module to improve": "optimize",
    "# The modules to combine": "crossover",
    "# The module that failed": "repair",
    "# A module that works, to be different from": "explore",
    "# Where the search begins anew": "restart",
}
"""Headings of the prompt files under which the parents stand; a prompt without one asks for a module from nothing."""

DOLLARS_IN, DOLLARS_CACHED, DOLLARS_OUT = 4.0, 0.4, 20.0
"""Per million tokens, of a large hosted model; the stable blocks count as read from its cache."""

CHARACTERS_PER_TOKEN = 4
THINKING_TOKENS = 500

_BLOCK = re.compile(r"^(`{3,})python\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"Entry: `(\w+)`")
_ANGLE = re.compile(r"\*\*(.+?)\*\*")
_FAILED_PAIR = re.compile(r"(\w+) with (\w+) do not go together")
_BROKEN = "def toy(x)\n"


@dataclass(frozen=True)
class Asked:
    """What the model takes from a prompt.

    Attributes:
        role: A value of `ROLES`, or ``generate``.
        modules: Sources of the parents, in order.
        text: The body of the prompt.
    """

    role: str
    modules: tuple[str, ...]
    text: str


Answerer = Callable[[Asked, np.random.Generator], str | None]
"""The module to answer with; None where nothing comes to mind."""


@dataclass(frozen=True)
class Faults:
    """Shares of answers that are a refusal, an apology, and a module with broken syntax."""

    refusal: float = 0.02
    apology: float = 0.03
    syntax: float = 0.06


class ScriptedModel(ReplayModel):
    """See the module's docstring.

    Args:
        answer: Makes the modules.
        faults: What goes wrong, and how often.
        seed: Of its answers; equal seeds and prompts give equal answers.
        figures: Whether all of a prompt bears on the answer, or only role, parents and point of view: real evaluators draw secret
            inputs, so that the errors they report differ from run to run.
    """

    def __init__(self, answer: Answerer, *, faults: Faults | None = None, seed: int = 0, figures: bool = True) -> None:
        super().__init__(self._reply, name="scripted")
        self._answer_with = answer
        self._faults = Faults() if faults is None else faults
        self._seed = seed
        self._figures = figures

    def _reply(self, prompt: Prompt) -> Reply:
        asked = read_prompt(prompt)
        heard = prompt.prompt_hash if self._figures else content_id(asked.role, *_ANGLE.findall(prompt.body), *asked.modules)
        rng = np.random.default_rng([self._seed, int(heard, 16)])
        text, stop_reason = self._text(prompt, asked, rng)
        cached, fresh = (sum(map(len, parts)) // CHARACTERS_PER_TOKEN for parts in (prompt.stable, (prompt.body,)))
        written = len(text) // CHARACTERS_PER_TOKEN + THINKING_TOKENS
        dollars = (cached * DOLLARS_CACHED + fresh * DOLLARS_IN + written * DOLLARS_OUT) / 1e6
        return Reply(text, stop_reason, Usage(fresh, written, cached, 0, dollars))

    def _text(self, prompt: Prompt, asked: Asked, rng: np.random.Generator) -> tuple[str, str]:
        if "Your reply could not be used" in prompt.body:
            broken = prompt.body.rsplit("```python\n", 1)[-1].split("```", 1)[0]
            return _in_reply(broken.replace(_BROKEN, "def toy(x):\n"), "as before"), "end_turn"
        draw = rng.random()
        if draw < self._faults.refusal:
            return "I would rather not.", "refusal"
        if draw < self._faults.refusal + self._faults.apology:
            return "I am sorry, I cannot think of anything.", "end_turn"
        source = self._answer_with(asked, rng)
        if source is None:
            return "I am sorry, nothing comes to mind.", "end_turn"
        if rng.random() < self._faults.syntax:
            source = source.replace("def toy(x):\n", _BROKEN)
        return _in_reply(source, f"{asked.role} {rng.integers(10**6)}"), "end_turn"


def read_prompt(prompt: Prompt) -> Asked:
    """Role and parents of a prompt of ours."""
    for heading, role in ROLES.items():
        before, found, after = prompt.body.rpartition(f"{heading}\n")
        if found and (not before or before.endswith("\n")):
            entry = _ENTRY.search("\n".join(prompt.stable))
            wanted = f"def {entry[1]}(" if entry else ""
            modules = tuple(source for _, source in _BLOCK.findall(after) if wanted in source)
            return Asked(role, modules, prompt.body)
    return Asked("generate", (), prompt.body)


def toy_answer(asked: Asked, rng: np.random.Generator) -> str | None:
    """Modules of `evo.search.toy`: small steps to improve, large ones to explore; a repair mostly undoes one of the two features that
    the evaluator's message names."""
    if asked.role == "generate":
        return render(_raised(rng, 0.4))
    if asked.role == "crossover":
        return _applied((ToyCrossover(),), asked.modules[:2], rng)
    source = asked.modules[0]
    if asked.role == "repair":
        genes = genes_of(source)
        named = [name for pair in _FAILED_PAIR.findall(asked.text) for name in pair if genes.get(name)]
        raised = sorted(name for name, value in genes.items() if value)
        choices = named if named and rng.random() < 0.8 else raised
        if not choices:
            return None
        del genes[choices[int(rng.integers(len(choices)))]]
        return render(genes)
    for _ in range(int(rng.integers(1, 3)) if asked.role == "optimize" else int(rng.integers(3, 7))):
        source = _applied((ToyKnob(), ToyFlag()), (source,), rng) or source
    return source


def rewrite_answer(operators: Sequence[Operator]) -> Answerer:
    """Real kernels, by operators that need no model: any that applies, in an order drawn anew for every prompt."""

    def answer(asked: Asked, rng: np.random.Generator) -> str | None:
        fitting = [item for item in operators if item.arity == len(asked.modules)]
        return _applied(tuple(fitting[place] for place in rng.permutation(len(fitting))), asked.modules, rng, one=False)

    return answer


def _applied(operators: Sequence[Operator], sources: Sequence[str], rng: np.random.Generator, *, one: bool = True) -> str | None:
    """What one of the operators makes (`one`), or the first that makes anything."""
    chosen = [operators[int(rng.integers(len(operators)))]] if one else operators
    parents = tuple(Parent(Variant("scripted", source)) for source in sources)
    for operator in chosen:
        outcome = finished(operator, parents, _CONTEXT, rng)
        if isinstance(outcome, Proposal):
            return outcome.source
    return None


def finished(operator: Operator, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> object:
    """The outcome of an operator that waits for nothing."""
    coroutine = operator.propose(parents, context, rng)
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError(f"operator {operator.name} waits for something")


def _raised(rng: np.random.Generator, share: float) -> dict[str, int | float | bool | str]:
    flags = {name: bool(rng.random() < share) for name in FLAGS}
    knobs = {name: int(rng.integers(1, LEVELS)) if rng.random() < share else 0 for name in KNOBS}
    return {**flags, **knobs}


def _in_reply(source: str, strategy: str) -> str:
    return f"Strategy: {strategy}\n\n```python\n{source.rstrip()}\n```\n"


_CONTEXT = Context("scripted", "", "", "", frozenset(), "cuda:90", "3.9.0")
