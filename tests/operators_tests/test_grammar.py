"""The grammar takes kernels that are right, in every notation, and says where others leave it."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import io
import random
import sys
import time
import tokenize
import types
import warnings
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLParserLimits, gbnf_to_lark

from operators.grammar import check
from operators.grammar.check import module_violation, violation
from operators.grammar.forms import any_module, body, kernel, module_reply, skeleton_reply
from operators.grammar.namespace import language_names
from tests.operators_tests.grammar_broken import BROKEN, RIGHT, broken

STARTS = sorted(path for path in (Path(__file__).parents[2] / "evo/tasks/starts").glob("*.py") if path.stem != "__init__")

HEAD = "@triton.jit\ndef k(x_ptr, n, BLOCK: tl.constexpr):\n"


def replied(module: str) -> str:
    return "Strategy: the same\n```python\n" + module.strip("\n") + "\n```\n"


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[] if number % 4 == 0 else pytest.mark.slow) for number, path in enumerate(STARTS)],
)
def test_starting_kernels_match_as_they_are_and_as_skeletons_of_themselves(path: Path) -> None:
    source = path.read_text()
    assert module_violation(source) is None
    skeleton = skeleton_reply(source)
    assert skeleton is not None
    assert violation(replied(source), skeleton) is None


@pytest.mark.parametrize("name", BROKEN)
def test_a_kernel_that_is_broken_by_hand_is_refused_where_it_is_broken(name: str) -> None:
    source, latest = broken(name)
    found = module_violation(source)
    assert found is not None
    start = len(RIGHT[: RIGHT.index(BROKEN[name][0])].encode())
    # An error shows when no way is left to go on: never before the change, and within a statement or two after it.
    assert start <= found.byte <= latest + 120
    assert found.line == source.encode()[: found.byte].decode(errors="ignore").count("\n") + 1


def test_there_are_at_least_sixty_broken_kernels_and_the_right_one_is_right() -> None:
    assert len(BROKEN) >= 60
    assert module_violation(RIGHT) is None


def test_a_violation_names_its_place_and_quotes_what_stands_before() -> None:
    found = module_violation(HEAD + "    x = tl.load(x_ptr))\n")
    assert found is not None
    assert found.byte == len((HEAD + "    x = tl.load(x_ptr)").encode())
    assert str(found).startswith(f"byte {found.byte} (line 3, column 23): ')' cannot follow '")
    ended = module_violation(HEAD)
    assert ended is not None
    assert ended.byte == len(HEAD)
    assert "cannot end" in str(ended)


@pytest.mark.parametrize(
    "statement",
    [
        "x = 1 if n else 2",
        "x = n in_ (1, 2)".replace("in_", "in"),
        "input_ = n",
        "notx = not n",
        "x = (n\n         + 1  # comment\n         )",
        "x, y = tl.split(n)",
        "x: tl.constexpr = 4",
        'tl.static_assert(n % 2 == 0, f"n is {n}, not even")',
        "x = tl.math.exp(n)[:, None] @ n",
        "x = [i for i in tl.static_range(4)]",
        "while n > 1 and not (n < 0): n //= 2",
        "return",
        "x[n, :] = -n ** 2",
        "tl.device_print('\\N{DEGREE SIGN} \\'', n)",
        "raise ValueError('no such type')",
        "with tl.async_tasks(): pass" if "async_tasks" in language_names() else "pass",
    ],
)
def test_statements_of_kernels(statement: str) -> None:
    ast.parse(f"def f():\n    {statement}\n")
    assert module_violation(f"{HEAD}    {statement}\n") is None
    assert module_violation(f"{HEAD}    {statement}".replace("    ", "  ")) is None


@pytest.mark.parametrize("statement", ["x = n inn", "x = n orn", "for i inrange(3): pass", "x = n isn", "x = n if n elsen"])
def test_a_word_that_begins_like_a_keyword_is_none(statement: str) -> None:
    assert module_violation(f"{HEAD}    {statement}\n") is not None


def test_what_is_too_complex_is_left_to_the_compiler_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = "x = " + "1 if n else " * 3_000 + "1\n"
    begun = time.thread_time()
    assert violation(chain + ")\n", any_module(), lenient=True, patience_s=0.1) is None
    assert time.thread_time() - begun < 2
    few = LLParserLimits(max_items_in_row=200, step_max_items=2_000_000, initial_lexer_fuel=50_000_000, step_lexer_fuel=5_000_000)
    monkeypatch.setattr(check, "_LIMITS", few)
    check._compiled.cache_clear()
    try:
        assert module_violation(chain) is None
        assert module_violation("x = 1)\n") is not None
    finally:
        check._compiled.cache_clear()


def test_host_code_may_do_what_kernels_may_not() -> None:
    text = (
        "class A:\n    @staticmethod\n    def f(*a, b=1, **c):\n        try:\n            yield {1: [x async for x in a], **c}\n"
    )
    text += (
        "        except* (ValueError, KeyError) as error:\n            del a[0]\n        finally:\n            lambda x, *y: x\n"
    )
    ast.parse(text)
    assert module_violation(text) is None


def test_the_strict_form_follows_the_installed_triton() -> None:
    import triton.language as tl

    names = language_names()
    assert {"load", "store", "dot", "float16", "constexpr", "math"} <= set(names)
    assert all(hasattr(tl, name) for name in names)
    loose = any_module(strict=False)
    assert violation(f"{HEAD}    tl.nosuch(n)\n", loose, lenient=True) is None
    assert module_violation(f"{HEAD}    tl.nosuch(n)\n") is not None


def test_a_skeleton_frees_bodies_and_nothing_else() -> None:
    skeleton = skeleton_reply(RIGHT)
    assert skeleton is not None
    other = RIGHT.replace("    mask = offsets < count\n", "").replace("mask=mask", "mask=offsets < count")
    assert violation(replied(other), skeleton) is None
    for old, new in (
        ("BLOCK: tl.constexpr", "SIZE: tl.constexpr"),
        ('"BLOCK": 1024', '"BLOCK": 64'),
        ("return y", "return x"),
        ("def scale(", "def scaled("),
    ):
        assert violation(replied(RIGHT.replace(old, new)), skeleton) is not None, old


@pytest.mark.parametrize(
    "source",
    ["x = 1\n", "def f(:\n", "@triton.jit\ndef f(x): return x\n", "@triton.jit\ndef f(x):\n  return x\n", RIGHT + '"```"\n'],
)
def test_what_has_no_body_to_free_has_no_skeleton(source: str) -> None:
    assert skeleton_reply(source) is None


def test_a_generated_module_has_the_house_form() -> None:
    reply = module_reply("scale")
    assert violation(replied(RIGHT), reply) is None
    assert violation(replied(RIGHT.replace("def scale(", "def other(")), reply) is not None
    assert violation(replied(RIGHT.replace("import triton\n", "import os\n")), reply) is not None
    with pytest.raises(ValueError, match="no name"):
        module_reply('x"')


def test_kernels_and_bodies_alone() -> None:
    text = HEAD + "    x = tl.load(x_ptr)\n    return x\n"
    assert violation(text, kernel()) is None
    assert violation(text + "y = 1\n", kernel()) is not None
    assert violation(text.removeprefix(HEAD), body()) is None
    assert violation("x = 1\n", body()) is not None


def test_equal_grammars_have_equal_hashes_and_others_do_not() -> None:
    assert skeleton_reply(RIGHT) == skeleton_reply(RIGHT)
    hashes = {grammar.hash for grammar in (kernel(), body(), module_reply("f"), module_reply("g"), kernel(strict=False))}
    assert len(hashes) == 5


@pytest.mark.parametrize("count", [60, pytest.param(1_000, marks=pytest.mark.slow)])
def test_random_mutants_that_are_no_python_are_refused(count: int) -> None:
    draw = random.Random(7)
    sources = [path.read_text() for path in STARTS if path.stat().st_size < 2_500]
    refused = 0
    while refused < count:
        mutant = mutated(draw.choice(sources), draw)
        if not parses(mutant):
            assert module_violation(mutant) is not None, mutant
            refused += 1


def test_gbnf_has_the_syntax_of_gbnf() -> None:
    skeleton = skeleton_reply(RIGHT)
    assert skeleton is not None
    for grammar in (kernel(), body(), module_reply("scale"), skeleton):
        assert LLMatcher.validate_grammar(gbnf_to_lark.gbnf_to_lark(grammar.gbnf)) == "", grammar.form


@pytest.mark.slow
def test_gbnf_is_what_xgrammar_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("transformers") is None:  # it wants the names of three of its classes, which no grammar needs
        stand_in = types.ModuleType("transformers")
        for name in ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast", "LogitsProcessor"):
            setattr(stand_in, name, type(name, (), {}))
        stand_in.__spec__ = importlib.machinery.ModuleSpec("transformers", None)
        monkeypatch.setitem(sys.modules, "transformers", stand_in)
    xgrammar = pytest.importorskip("xgrammar", reason="reads EBNF for SGLang: pip install --no-deps xgrammar apache-tvm-ffi")
    accepts = importlib.import_module("xgrammar.testing")._is_grammar_accept_string
    kernels = xgrammar.Grammar.from_ebnf(kernel().gbnf)
    assert accepts(kernels, HEAD + "    x = 1 if n in (2, 3) else tl.load(x_ptr)\n")
    for statement in ("x = 1 if nelse 2", "x = tl.stroe(n)", "break", "in = n", "  x = n", 'x = """"a"'):
        assert not accepts(kernels, f"{HEAD}    {statement}\n"), statement
    for path in STARTS:
        source = path.read_text()
        skeleton = skeleton_reply(source)
        assert skeleton is not None
        assert accepts(xgrammar.Grammar.from_ebnf(skeleton.gbnf), replied(source)), path


def parses(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except (SyntaxError, ValueError):
            return False
    return True


def mutated(text: str, draw: random.Random) -> str:
    """The text with one token dropped, doubled or exchanged, one character dropped or added, or one line moved to the right."""
    lines = text.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    spans = [
        (starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1])
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.string.strip()
    ]
    (first, end), (other, other_end) = sorted((draw.choice(spans), draw.choice(spans)))
    place = draw.randrange(len(text))
    line = draw.randrange(1, len(lines))
    return draw.choice(
        [
            text[:first] + text[end:],
            text[:end] + " " + text[first:end] + text[end:],
            text[:first] + text[other:other_end] + text[end:other] + text[first:end] + text[other_end:],
            text[:place] + text[place + 1 :],
            text[:place] + draw.choice("()[]{}:,.=+-*/\"'#@ \n!?$;") + text[place:],
            "".join(lines[:line]) + " " * draw.randint(1, 4) + "".join(lines[line:]),
        ]
    )
