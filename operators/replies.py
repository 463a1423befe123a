"""From a model's reply to module text: a whole module, or edits of the module that the model was shown."""

from __future__ import annotations

from operators.prompting import MAX_REPLY_BYTES, UnusableReplyError, extract_module, module_problem
from operators.search_replace import UnusableEditError, apply_edits, has_edits, read_edits


def module_of(reply: str, entry: str, base: str | None) -> str:
    """The module that a reply proposes. The reply is only ever parsed, never run.

    Args:
        reply: Text of a model.
        entry: What the module must define.
        base: The module that edits are for; None where there is none.

    Raises:
        UnusableReplyError: It holds none, several, or edits that cannot be applied; the text says why.
    """
    if base is None or not has_edits(reply):
        return extract_module(reply, entry)
    size = len(reply.encode("utf-8", "replace"))
    if size > MAX_REPLY_BYTES:
        raise UnusableReplyError(f"the reply has {size} bytes, more than the {MAX_REPLY_BYTES} allowed")
    if _whole_module(reply, entry):
        raise UnusableReplyError("the reply has edits and a whole module; one of them is wanted")
    try:
        source = apply_edits(base, read_edits(reply))
    except UnusableEditError as error:
        raise UnusableReplyError(str(error)) from error
    problem = module_problem(source, entry)
    if problem:
        raise UnusableReplyError(f"the module after the edits cannot be used: {problem}")
    return source


def may_be_mended(reply: str, entry: str) -> bool:
    """Whether there is something in an unusable reply that one more turn could mend: code or edits, not an apology alone."""
    short_enough = len(reply.encode("utf-8", "replace")) <= MAX_REPLY_BYTES
    return short_enough and (has_edits(reply) or "```" in reply or "~~~" in reply or f"def {entry}" in reply)


def _whole_module(reply: str, entry: str) -> bool:
    try:
        extract_module(reply, entry)
    except UnusableReplyError:
        return False
    return True
