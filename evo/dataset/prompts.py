"""The prompts of a data set where none was recorded: what our own operators ask a model, of the state that a search was in.

A model that is trained on them meets the same words when it proposes in a search.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from evo.cluster.setup import context_of
from evo.dataset.reading import Made
from evo.plain import content_id
from evo.tasks.base import Task
from operators.base import Context
from operators.llm.asking import PromptFiles
from operators.llm.evidence import bounds, failure_text, gist, parent_text
from operators.llm.notes import notes_text
from operators.prompting import fenced

MAX_SOURCE = 40_000
"""Characters of a module in a prompt or reply; longer ones would be cut, and so are left out."""


class Ask(StrEnum):
    """What is asked: a module from the reference alone, a faster one, or a mended one."""

    GENERATE = "generate"
    IMPROVE = "improve"
    REPAIR = "repair"


@dataclass(frozen=True)
class Question:
    """A state of a search and what is asked of it.

    Attributes:
        ask: See `Ask`.
        prompt: The text.
        parent: What is to be improved or mended; None for GENERATE.
    """

    ask: Ask
    prompt: str
    parent: Made | None = None


class Questions:
    """Of one task, the same for the same states.

    Args:
        task: The task.
        target: Key of a target.
        triton: Version that kernels are compiled with; empty for the installed one.
    """

    def __init__(self, task: Task, target: str, triton: str) -> None:
        context = context_of(task, target)
        self._context: Context = dataclasses.replace(context, triton_version=triton) if triton else context
        self._files = {name: PromptFiles.load(name) for name in ("generate", "optimize", "repair")}

    def of(self, parent: Made | None) -> Question:
        """The question about a variant, or about none."""
        if parent is None:
            return Question(Ask.GENERATE, self._text("generate", "", notes=notes_text(self._context, (), source=False)))
        shown = parent.as_parent
        notes = notes_text(self._context, (shown,))
        knowledge = self._files["repair"].knowledge
        if parent.passed is None:
            message = parent.verdict.message if parent.verdict is not None else ""
            hints = knowledge.for_evidence(message=gist(message))
            text = self._text("repair", parent.variant_id, notes=notes, failure=failure_text(shown), hints=hints)
            return Question(Ask.REPAIR, text, parent)
        hints = knowledge.for_evidence(bounds=bounds(parent.verdict)[:1])
        text = self._text("optimize", parent.variant_id, notes=notes, parent=parent_text(shown, "Present module"), hints=hints)
        return Question(Ask.IMPROVE, text, parent)

    def _text(self, name: str, state: str, **values: str) -> str:
        seed = int(content_id(self._context.task, state), 16) % 2**63
        return self._files[name].prompt(self._context, np.random.default_rng(seed), 1, edits=False, grammar=None, **values).text


def reply_text(strategy: str, source: str) -> str:
    """A reply in the form that our prompts ask for: the strategy in a line, and the module."""
    return f"Strategy: {' '.join(strategy.split())}\n\n{fenced(source, 'python')}\n"
