"""The contract of every operator, found by walking the package: a new one is checked without being listed here."""

import ast
import asyncio
import importlib
import inspect
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import operators
from evo.knobs import read_knobs
from evo.records import NoProposal, Proposal, Variant
from operators.base import Context, Operator, OperatorKind, Parent

STARTS = Path(operators.__file__).parents[1] / "evo" / "tasks" / "starts"
SOFTMAX = (STARTS / "softmax.py").read_text()
TUNED = SOFTMAX.replace('CONFIG = {"num_warps": 8}', 'CONFIG = {"num_warps": 4}')
CONTEXT = Context("softmax", "Row-wise softmax.", "softmax", "", frozenset(), "cuda:90", "3.9")

NONSENSE = {
    "empty": "",
    "prose": "the quick brown fox",
    "syntax error": "def softmax(x:\n    return x",
    "null byte": "x = 1\0",
    "lone surrogate": "x = '\ud800'",
    "no kernel": "import triton\nimport triton.language as tl\n\n\ndef softmax(x):\n    return x\n",
    "hostile knobs": "import triton\nimport triton.language as tl\nCONFIG = open('/etc/passwd')\n" + SOFTMAX,
    "two knob tables": SOFTMAX + "\nCONFIG = {}\n",
    "huge": SOFTMAX + "# x\n" * 200_000,
    "deep parentheses": "x = " + "(" * 5000 + ")" * 5000,
    "deep operators": "x = " + "-" * 20_000 + "1",
    "deep attributes": "x = a" + ".b" * 3000,
    "deep blocks": "".join("    " * i + "if x:\n" for i in range(90)) + "    " * 90 + "pass\n",
    "unknown launch": SOFTMAX.replace("softmax_kernel[(rows,)](", "softmax_kernel[grid_of(x)](*things, "),
    "launch without grid": SOFTMAX.replace("softmax_kernel[(rows,)](", "softmax_kernel("),
    "kernel without body": SOFTMAX.split("    row =")[0] + "    ...\n",
    "windows newlines": SOFTMAX.replace("\n", "\r\n"),
}


def found():
    """One instance of every operator that needs no model."""
    classes = set()
    for module in pkgutil.walk_packages(operators.__path__, "operators."):
        for item in vars(importlib.import_module(module.name)).values():
            named = inspect.isclass(item) and issubclass(item, Operator) and hasattr(item, "name")  # chains have none
            if named and not inspect.isabstract(item):
                classes.add(item)
    return sorted(classes, key=lambda item: item.name)


CLASSES = found()
OPERATORS = [item() for item in CLASSES if not item.needs_model]
every = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)


def propose(operator, *sources, seed=0):
    parents = tuple(Parent(Variant("softmax", source)) for source in sources)
    return asyncio.run(operator.propose(parents, CONTEXT, np.random.default_rng(seed)))


def parents_of(operator):
    return (SOFTMAX, TUNED)[: operator.arity]


def test_names_are_unique_and_snake_case():
    names = [item.name for item in CLASSES]
    assert len(names) == len(set(names)) >= 6
    assert all(name.isidentifier() and name == name.lower() and not name.startswith("_") for name in names)
    assert all(item.arity in (1, 2, 3) or (item.arity == 0 and item.kind is OperatorKind.GENERATE) for item in CLASSES)


@every
def test_an_operator_makes_a_valid_module_that_differs_or_says_why_not(operator):
    for path in sorted(STARTS.glob("[a-z]*.py"))[::4]:  # all of them are proved, with values, by `make test-slow`
        source = path.read_text()
        sources = (source, source.replace('"num_warps": 8', '"num_warps": 4'))[: operator.arity]
        outcome = propose(operator, *sources)
        if isinstance(outcome, NoProposal):
            assert outcome.reason
            assert not outcome.failed
        else:
            meanings = [ast.dump(ast.parse(item)) for item in sources]
            assert ast.dump(ast.parse(outcome.source)) not in meanings
            assert outcome.strategy
            read_knobs(outcome.source)


@every
def test_the_generator_is_the_only_source_of_randomness(operator):
    for seed in range(3):
        assert propose(operator, *parents_of(operator), seed=seed) == propose(operator, *parents_of(operator), seed=seed)


@every
def test_parents_are_not_changed(operator):
    parents = tuple(Parent(Variant("softmax", source)) for source in parents_of(operator))
    before = [parent.variant.variant_id for parent in parents]
    asyncio.run(operator.propose(parents, CONTEXT, np.random.default_rng(0)))
    assert [parent.variant.variant_id for parent in parents] == before
    assert [parent.variant.source for parent in parents] == list(parents_of(operator))


@every
@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_gives_no_exception(operator, kind):
    outcome = propose(operator, *(NONSENSE[kind],) * operator.arity)
    assert isinstance(outcome, NoProposal | Proposal)
    if kind not in ("unknown launch", "windows newlines", "launch without grid"):
        assert isinstance(outcome, NoProposal)
        assert not outcome.failed
