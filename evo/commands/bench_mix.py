"""Makes the untuned candidates that a benchmark of the evaluator feeds it: all different, most of them right."""

from __future__ import annotations

import ast
import asyncio
import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evo.knobs import read_knobs
from evo.records import Proposal, Variant
from evo.syntax import module_tree
from operators.base import Context, Operator, OperatorKind, Parent

SHARES: Mapping[str, float] = {
    "restated": 0.30,  # the starting kernel, with a bound that no other candidate has
    "configured": 0.25,  # another configuration of it as the declared one
    "rewritten": 0.25,  # what rule-based operators make of it
    "wrong": 0.10,  # results 1 % off
    "uncompilable": 0.06,  # a name that is not defined
    "torch": 0.04,  # torch computes a part of the result
}
"""Shares by what a candidate is. The last three fail, one in five: more than rule-based operators alone, less than language models."""

_BOUND = 1 << 30
"""No grid of a kernel here is that long, so bounding a program index by it changes nothing, and costs one instruction."""
_REWRITE_SEEDS = 4
_MAX_REWRITTEN = 64


@dataclass(frozen=True)
class Made:
    """One candidate: what it is (a key of `SHARES`) and its module."""

    kind: str
    source: str


class Mix:
    """An endless, repeatable row of candidates. Safe to use from several threads.

    Args:
        task: Task name.
        starts: Source of the starting kernels.
        entry: What modules define.
        rewritten: Further right modules, see `rewrites`.
        seed: Of all choices.
    """

    def __init__(self, task: str, starts: Sequence[str], entry: str, rewritten: Sequence[str], seed: int) -> None:
        self.task = task
        self._starts = tuple(starts)
        self._entry = entry
        self._rewritten = tuple(rewritten)
        self._seed = seed

    @property
    def start(self) -> str:
        """The first starting kernel, as it is."""
        return self._starts[0]

    def candidate(self, number: int) -> Made:
        """The candidate of that number; no two numbers give launch plans that are equal."""
        chance = random.Random(f"{self._seed}:{number}")
        (kind,) = chance.choices(list(SHARES), list(SHARES.values()))
        source = chance.choice(self._starts)
        if kind == "rewritten" and self._rewritten:
            source = chance.choice(self._rewritten)
        elif kind != "restated":
            source = configured(source, chance)
        if kind == "wrong":
            source = _scaled_results(source)
        elif kind == "uncompilable":
            source = _inserted(source, "unknown = not_defined_anywhere + 1")
        elif kind == "torch":
            source += (
                f"\n\n_kernels = {self._entry}\n\n\ndef {self._entry}(*arguments):\n    return _kernels(*arguments).neg().neg()\n"
            )
        return Made(kind, restated(source, number))


def rewrites(variants: Sequence[Variant], context: Context, operators: Sequence[Operator], seed: int) -> tuple[str, ...]:
    """Modules that rule-based mutations make of the starting kernels, and of those, once more; each different, at most 64."""
    sources = list(dict.fromkeys(variant.source for variant in variants))
    usable = [operator for operator in operators if operator.kind is OperatorKind.MUTATION and not operator.needs_model]
    known = set(sources)
    made: list[str] = []
    for generation in range(2):
        parents = sources if generation == 0 else list(made)
        for source, operator, number in itertools.product(parents, usable, range(_REWRITE_SEEDS)):
            if len(made) == _MAX_REWRITTEN:
                return tuple(made)
            rng = np.random.default_rng((seed, generation, number))
            parent = (Parent(Variant(context.task, source)),)
            outcome = asyncio.run(operator.propose(parent, context, rng))
            if isinstance(outcome, Proposal) and outcome.source not in known:
                known.add(outcome.source)
                made.append(outcome.source)
    return tuple(made)


def restated(source: str, number: int) -> str:
    """The module with the first program index of its first kernel bounded by a number that no grid reaches, another one for each
    `number`: the same work by another kernel.

    Raises:
        ValueError: No kernel asks for its program index.
    """
    found = re.search(r"^import triton\.language as (\w+)", source, re.MULTILINE)
    language = found[1] if found else "triton.language"
    calls = [
        node
        for node in ast.walk(_kernels(source)[0])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"{language}.program_id" and node.lineno == node.end_lineno
    ]
    if not calls:
        raise ValueError("the module's first kernel does not ask for its program index")
    first = min(calls, key=lambda node: (node.lineno, node.col_offset))
    return _wrapped(source, first, f"{language}.minimum(", f", {_BOUND + number})")


def configured(source: str, chance: random.Random) -> str:
    """The module with a configuration of its space as the declared one."""
    knobs = read_knobs(source)
    if not knobs.space:
        return source
    values = {**knobs.default, **{key: chance.choice(choices) for key, choices in knobs.space.items()}}
    (node,) = [
        item
        for item in module_tree(source).body
        if isinstance(item, ast.Assign) and any(isinstance(name, ast.Name) and name.id == "CONFIG" for name in item.targets)
    ]
    lines = source.splitlines()
    return "\n".join([*lines[: node.lineno - 1], f"CONFIG = {values!r}", *lines[node.end_lineno or node.lineno :]]) + "\n"


def _inserted(source: str, statement: str) -> str:
    """The module with a statement at the start of its first kernel."""
    body = _kernels(source)[0].body
    documented = len(body) > 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    first = body[1] if documented else body[0]
    lines = source.splitlines()
    lines.insert(first.lineno - 1, " " * first.col_offset + statement)
    return "\n".join(lines) + "\n"


def _scaled_results(source: str) -> str:
    """The module with what its last kernel stores first made 1 % larger."""
    stores = [
        node
        for node in ast.walk(_kernels(source)[-1])
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(".store")
        and len(node.args) > 1
        and node.args[1].lineno == node.args[1].end_lineno
    ]
    if not stores:
        return source
    return _wrapped(source, stores[0].args[1], "(1.01 * (", "))")


def _wrapped(source: str, node: ast.expr, before: str, after: str) -> str:
    """The module with text before and after an expression that ends on the line where it begins."""
    lines = source.splitlines()
    line = lines[node.lineno - 1].encode()  # column offsets count bytes
    end = node.end_col_offset or 0
    lines[node.lineno - 1] = (
        line[: node.col_offset] + before.encode() + line[node.col_offset : end] + after.encode() + line[end:]
    ).decode()
    return "\n".join(lines) + "\n"


def _kernels(source: str) -> list[ast.FunctionDef]:
    kernels = [
        node
        for node in module_tree(source).body
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(item) for item in node.decorator_list)
    ]
    if not kernels:
        raise ValueError("the module has no function under @triton.jit")
    return kernels
