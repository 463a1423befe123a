"""Asks a model for one module: from prompt files to a prompt, from its reply to a proposal or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evo.errors import ModelError, SpendLimitError
from evo.records import Exchange, NoProposal, Proposal
from operators.base import Context, Parent
from operators.models.base import Model, Prompt, RequestError
from operators.prompting import Template, UnusableReplyError, extract_module, fenced, same_program, strategy_line, template_hash

_COMPLETE = frozenset({"end_turn", "stop_sequence"})
"""Stop reasons of a whole reply."""

_INCOMPLETE = {
    "refusal": "the model refused to answer",
    "max_tokens": "the reply was cut off at max_tokens",
    "model_context_window_exceeded": "prompt and reply are longer than the model's context window",
}


@dataclass(frozen=True)
class PromptFiles:
    """The prompt files of one operator: those that every request shares, and its own.

    Attributes:
        rules, triton, task: Rules and facts, the same for a whole run, and the task.
        angles: One point of view per line; each request is given one, for an endpoint without temperature needs other diversity.
        body: What the operator asks.
    """

    rules: Template
    triton: Template
    task: Template
    angles: Template
    body: Template

    @classmethod
    def load(cls, body: str) -> PromptFiles:
        """The shared files and `body`.md.

        Raises:
            InputError: A file is missing.
        """
        return cls(*(Template.load(name) for name in ("rules", "triton", "task", "angles", body)))

    @property
    def hash(self) -> str:
        """Of all files, in order."""
        return template_hash(self.rules, self.triton, self.task, self.angles, self.body)

    def prompt(self, context: Context, rng: np.random.Generator, max_tokens: int, **values: str) -> Prompt:
        """The prompt, with one of the angles drawn by `rng`.

        Raises:
            InputError: A file's placeholders and the values do not match.
        """
        angles = [line for line in self.angles.text.splitlines() if line.strip()]
        angle = angles[int(rng.integers(len(angles)))]
        rules = self.rules.render(target=context.target, triton_version=context.triton_version)
        task = self.task.render(
            task=context.task,
            description=context.description,
            entry=context.entry,
            reference=fenced(context.reference_source, "python"),
            allowed_operators=", ".join(f"`{name}`" for name in sorted(context.allowed_operators)) or "none",
        )
        body = self.body.render(angle=angle, **values)
        return Prompt((f"{rules}\n\n{self.triton.render()}", task), body, self.hash, max_tokens)


async def ask(model: Model, prompt: Prompt, parents: tuple[Parent, ...], context: Context) -> Proposal | NoProposal:
    """One request. Whatever comes back is kept with its exchange; nothing is asked again.

    Raises:
        SpendLimitError: There is no money for this or any further request.
    """
    try:
        exchange = await model.complete(prompt)
    except SpendLimitError:
        raise
    except RequestError as error:
        return NoProposal(str(error), failed=True, exchanges=(error.exchange,))
    except ModelError as error:
        return NoProposal(str(error), failed=True)
    return read_reply(exchange, parents, context)


def read_reply(exchange: Exchange, parents: tuple[Parent, ...], context: Context) -> Proposal | NoProposal:
    """What an exchange proposes. Its reply is only ever parsed, never run."""
    if exchange.stop_reason not in _COMPLETE:
        reason = _INCOMPLETE.get(exchange.stop_reason, "the reply is incomplete")
        return NoProposal(f"{reason} (stop reason {exchange.stop_reason})", failed=True, exchanges=(exchange,))
    try:
        source = extract_module(exchange.reply, context.entry)
    except UnusableReplyError as error:
        return NoProposal(str(error), failed=True, exchanges=(exchange,))
    if any(same_program(source, parent.variant.source) for parent in parents):
        return NoProposal("the model returned a parent unchanged", failed=True, exchanges=(exchange,))
    return Proposal(source, strategy_line(exchange.reply), (exchange,))
