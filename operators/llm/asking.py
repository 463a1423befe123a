"""Asks a model for one module: from prompt files to a prompt, from its reply to a proposal or the reason why there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evo.errors import ModelError, SpendLimitError
from evo.records import Exchange, NoProposal, Proposal, content_id
from operators.base import Context, Parent
from operators.grammar.check import module_violation
from operators.grammar.forms import Grammar, module_reply, skeleton_reply
from operators.knowledge_base import KnowledgeBase
from operators.models.base import Form, Model, Prompt, RequestError
from operators.prompting import Template, UnusableReplyError, fenced, same_program, strategy_line, template_hash
from operators.replies import may_be_mended, module_of

EDITS_FROM = 6_000
"""Characters of a module from which on edits are asked for: a shorter one is written anew for about as many tokens."""

TAIL = 12_000
"""Characters of an unusable reply that its correction is shown."""

_COMPLETE = frozenset({"end_turn", "stop_sequence"})
"""Stop reasons of a whole reply."""

_INCOMPLETE = {
    "refusal": "the model refused to answer",
    "max_tokens": "the reply was cut off at max_tokens",
    "model_context_window_exceeded": "prompt and reply are longer than the model's context window",
}

Objection = Callable[[str], str]
"""(strategy) → why a proposal of it is not wanted, empty where it is."""


@dataclass(frozen=True)
class PromptFiles:
    """The prompt files of one operator: those that every request shares, and its own.

    Attributes:
        rules, triton, task: Rules and facts, the same for a whole run, and the task.
        angles: One point of view per line; each request is given one, for an endpoint without temperature needs other diversity.
        module, edits, skeleton: The forms of a reply.
        correction: What is asked about a reply that cannot be used.
        body: What the operator asks.
        knowledge: Facts about targets, versions, kinds of kernels and errors.
    """

    rules: Template
    triton: Template
    task: Template
    angles: Template
    module: Template
    edits: Template
    skeleton: Template
    correction: Template
    body: Template
    knowledge: KnowledgeBase

    @classmethod
    def load(cls, body: str) -> PromptFiles:
        """The shared files and `body`.md.

        Raises:
            InputError: A file is missing or malformed.
        """
        return cls(
            rules=Template.load("rules"),
            triton=Template.load("triton"),
            task=Template.load("task"),
            angles=Template.load("angles"),
            module=Template.load("form_module"),
            edits=Template.load("form_edits"),
            skeleton=Template.load("form_skeleton"),
            correction=Template.load("correction"),
            body=Template.load(body),
            knowledge=KnowledgeBase.load(),
        )

    @property
    def hash(self) -> str:
        """Of all files, in order."""
        files = (self.rules, self.triton, self.task, self.angles, self.module, self.edits, self.skeleton, self.body)
        return content_id(template_hash(*files), self.knowledge.hash)

    def prompt(
        self,
        context: Context,
        rng: np.random.Generator,
        max_tokens: int,
        *,
        edits: bool = False,
        grammar: Grammar | None = None,
        **values: str,
    ) -> Prompt:
        """The prompt, with one of the angles drawn by `rng`. What differs least from request to request comes first.

        Args:
            context: See `Context`.
            rng: Draws the angle.
            max_tokens: Longest reply.
            edits: Ask for edits of the module shown, not for a whole one.
            grammar: What the reply shall be held to.
            values: Of the body's own placeholders.

        Raises:
            InputError: A file's placeholders and the values do not match.
        """
        angles = [line for line in self.angles.text.splitlines() if line.strip()]
        angle = angles[int(rng.integers(len(angles)))]
        # Drawn in any case, so that equal seeds give equal numbers to every operator; not every body asks to look somewhere.
        shown = {"angle": angle} if "angle" in self.body.placeholders else {}
        body = self.body.render(**shown, **values)
        form = self._form(edits, grammar).render()
        return Prompt(self._stable(context), f"{body}\n\n{form}", self.hash, max_tokens, grammar)

    def correct(
        self, problem: str, exchange: Exchange, entry: str, max_tokens: int, *, edits: bool, grammar: Grammar | None = None
    ) -> Prompt:
        """A short prompt about a reply that cannot be used: what is wrong with it and its end, without the conversation before it."""
        form = self._form(edits, grammar).render()
        body = self.correction.render(problem=fenced(problem), reply=fenced(exchange.reply[-TAIL:]), entry=entry, form=form)
        return Prompt((), body, template_hash(self.correction, self.module, self.edits, self.skeleton), max_tokens, grammar)

    def _form(self, edits: bool, grammar: Grammar | None) -> Template:
        if grammar is not None and grammar.form == "skeleton":
            return self.skeleton
        return self.edits if edits else self.module

    def _stable(self, context: Context) -> tuple[str, ...]:
        """The blocks that an endpoint can cache: one for the whole run, one for the task; the same for every operator."""
        rules = self.rules.render(target=context.target, triton_version=context.triton_version)
        run = self.knowledge.for_run(context.target, context.triton_version)
        reference = (
            fenced(context.reference_source, "python") if context.reference_source.strip() else "(none but the description)"
        )
        task = self.task.render(
            task=context.task,
            description=context.brief.strip() or context.description,
            entry=context.entry,
            reference=reference,
            allowed_operators=", ".join(f"`{name}`" for name in sorted(context.allowed_operators)) or "none",
        )
        known = self.knowledge.for_task(context.kind, f"{context.description}\n{context.reference_source}")
        return "\n\n".join(filter(None, (rules, self.triton.render(), run))), "\n\n".join(filter(None, (task, known)))


class Asker:
    """One request for one module, and as many corrections as its tier has. Shared by all operators that ask a model.

    Args:
        model: Who is asked.
        body: Name of the operator's own prompt file.
    """

    def __init__(self, model: Model, body: str) -> None:
        self._model = model
        self._files = PromptFiles.load(body)

    @property
    def knowledge(self) -> KnowledgeBase:
        """What the operator may quote from."""
        return self._files.knowledge

    async def ask(
        self,
        parents: tuple[Parent, ...],
        context: Context,
        rng: np.random.Generator,
        *,
        edits: bool = True,
        objection: Objection | None = None,
        **values: str,
    ) -> Proposal | NoProposal:
        """Asks, and again about a reply that cannot be used. Whatever comes back is kept with its exchanges.

        Args:
            parents: What the child must differ from.
            context: See `Context`.
            rng: Of the request.
            edits: Whether the child may be written as edits of the first parent; they are asked for where that is long.
            objection: Says why a strategy is not wanted.
            values: Of the body's own placeholders.

        Raises:
            SpendLimitError: There is no money for this or any further request.
        """
        base = parents[0].variant.source if edits and parents else None
        grammar = reply_grammar(self._model.form, parents, context.entry)
        asks_edits = base is not None and len(base) >= EDITS_FROM and grammar is None
        prompt = self._files.prompt(context, rng, self._model.max_tokens, edits=asks_edits, grammar=grammar, **values)
        prompt = dataclasses.replace(prompt, request=_named(context, 1))
        try:
            exchange = await self._model.complete(prompt)
        except SpendLimitError:
            raise
        except ModelError as error:
            return _failure(error)
        question = _Question(parents, context, base, objection, asks_edits, grammar)
        outcome = question.read((exchange,))
        return await self._mended(question, outcome, (exchange,)) if isinstance(outcome, Unusable) else outcome

    async def _mended(self, question: _Question, outcome: Unusable, exchanges: tuple[Exchange, ...]) -> Proposal | NoProposal:
        """Further turns about a reply that cannot be used, as many as the tier has; all are kept with what comes of them."""
        usable, last, failed = outcome.proposal, outcome, ""
        while last.mendable and len(exchanges) <= self._model.corrections:
            try:
                exchange = await self._model.complete(self._correction(question, last, exchanges))
            except ModelError as error:
                # Without money too: the first reply is paid for and must be recorded; the next request will find the purse empty.
                failure = _failure(error)
                exchanges, failed = (*exchanges, *failure.exchanges), f"; its correction failed: {failure.reason}"
                break
            exchanges = (*exchanges, exchange)
            read = question.read(exchanges)
            if isinstance(read, Proposal) or (isinstance(read, NoProposal) and usable is None):
                return read
            if isinstance(read, NoProposal):
                break
            usable, last = read.proposal or usable, read
        if usable is not None:
            return dataclasses.replace(usable, exchanges=exchanges)
        before = "also after a correction: " if len(exchanges) > 1 and not failed else ""
        return NoProposal(f"{before}{last.problem}{failed}", failed=True, exchanges=exchanges)

    def _correction(self, question: _Question, last: Unusable, exchanges: tuple[Exchange, ...]) -> Prompt:
        prompt = self._files.correct(
            last.problem,
            exchanges[-1],
            question.context.entry,
            self._model.max_tokens,
            edits=question.edits,
            grammar=question.grammar,
        )
        return dataclasses.replace(prompt, request=_named(question.context, len(exchanges) + 1))


@dataclass(frozen=True)
class _Question:
    """What every reply to one question is read by."""

    parents: tuple[Parent, ...]
    context: Context
    base: str | None
    objection: Objection | None
    edits: bool
    grammar: Grammar | None

    def read(self, exchanges: tuple[Exchange, ...]) -> Proposal | NoProposal | Unusable:
        return read_reply(exchanges[-1], self.parents, self.context, self.base, self.objection, earlier=exchanges[:-1])


def reply_grammar(form: Form, parents: tuple[Parent, ...], entry: str) -> Grammar | None:
    """What a reply is held to; a skeleton needs a parent with kernels whose bodies can be freed, else any module will do."""
    skeleton = skeleton_reply(parents[0].variant.source) if form == "skeleton" and parents else None
    return None if form == "none" else skeleton or module_reply(entry)


@dataclass(frozen=True)
class Unusable:
    """A whole reply without a module that can be used: why, and whether one more turn may mend it.

    Attributes:
        proposal: What it comes to all the same if it is not mended: the grammar is a little stricter than the compiler.
    """

    problem: str
    mendable: bool
    proposal: Proposal | None = None


def read_reply(
    exchange: Exchange,
    parents: tuple[Parent, ...],
    context: Context,
    base: str | None,
    objection: Objection | None = None,
    earlier: tuple[Exchange, ...] = (),
) -> Proposal | NoProposal | Unusable:
    """What an exchange proposes. Its reply is only ever parsed, never run.

    Args:
        exchange: The newest one.
        parents: What a proposal must differ from.
        context: See `Context`.
        base: The module that edits are for.
        objection: Says why a strategy is not wanted.
        earlier: Exchanges of the same proposal, whose strategy counts where this one names none.
    """
    exchanges = (*earlier, exchange)
    if exchange.stop_reason not in _COMPLETE:
        reason = _INCOMPLETE.get(exchange.stop_reason, "the reply is incomplete")
        return NoProposal(f"{reason} (stop reason {exchange.stop_reason})", failed=True, exchanges=exchanges)
    try:
        source = module_of(exchange.reply, context.entry, base)
    except UnusableReplyError as error:
        return Unusable(str(error), may_be_mended(exchange.reply, context.entry))
    if any(same_program(source, parent.variant.source) for parent in parents):
        return NoProposal("the model returned a parent unchanged", failed=True, exchanges=exchanges)
    named = [item.reply for item in reversed(exchanges) if "strategy" in item.reply.lower()]
    strategy = strategy_line(named[0] if named else exchange.reply)
    unwanted = objection(strategy) if objection is not None else ""
    if unwanted:
        return Unusable(unwanted, mendable=True)
    proposal = Proposal(source, strategy, exchanges)
    found = None if earlier else module_violation(source)
    return Unusable(f"the compiler of kernels will refuse the module: {found}", True, proposal) if found else proposal


def _named(context: Context, turn: int) -> str:
    """A question's name in its run: where its reply is under way when a process dies, the next one knows it by that."""
    return "" if context.request is None else f"{context.request}-{turn}"


def _failure(error: ModelError) -> NoProposal:
    exchanges = (error.exchange,) if isinstance(error, RequestError) else ()
    return NoProposal(str(error), failed=True, exchanges=exchanges)
