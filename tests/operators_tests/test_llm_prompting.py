"""Prompt files are strict, untrusted text stays data, and from a reply comes one module or a reason."""

from __future__ import annotations

import ast
import re
import time

import pytest
import triton.language as tl
from hypothesis import example, given
from hypothesis import strategies as st

from evo.errors import InputError
from evo.knobs import read_knobs
from operators.prompting import (
    MAX_REPLY_BYTES,
    PROMPTS,
    Template,
    UnusableReplyError,
    extract_module,
    fenced,
    same_program,
    strategy_line,
    template_hash,
)

MODULE = "import triton\n\n\ndef softmax(x):\n    return x\n"


def block(source: str, label: str = "python") -> str:
    return f"```{label}\n{source.rstrip()}\n```\n"


@pytest.mark.parametrize("path", sorted(PROMPTS.glob("*.md")), ids=lambda path: path.stem)
def test_every_prompt_file_renders_with_its_placeholders_only(path: object) -> None:
    template = Template.load(getattr(path, "stem"))  # noqa: B009 - the parameter is a Path
    text = template.render(**dict.fromkeys(template.placeholders, "VALUE"))
    assert "{{" not in text
    with pytest.raises(InputError, match="without placeholder: stranger"):
        template.render(stranger="x", **dict.fromkeys(template.placeholders, ""))


def test_a_missing_value_names_file_and_placeholder() -> None:
    with pytest.raises(InputError, match=r"task\.md.*no value for .*description.*allowed: "):
        Template.load("task").render(task="softmax")
    with pytest.raises(InputError, match=r"allowed: .*optimize.*no such file"):
        Template.load("optimise")


def test_filled_in_text_is_not_a_template() -> None:
    assert Template("t", "{{a}} {{b}}").render(a="{{b}}", b="x") == "{{b}} x"


def test_the_hash_changes_with_any_file_and_their_order() -> None:
    first, second = Template("a", "one"), Template("b", "two")
    hashes = {template_hash(first, second), template_hash(second, first), template_hash(first, Template("b", "two!"))}
    assert len(hashes) == 3


def test_the_example_in_the_rules_keeps_the_rules() -> None:
    rules = Template.load("rules").text
    source = extract_module(rules, "scale")
    knobs = read_knobs(source)
    assert knobs.size > 5
    assert set(knobs.default) == set(knobs.space)
    assert "torch.empty_like" in source


def test_the_triton_sheet_names_only_what_this_triton_has() -> None:
    names = set(re.findall(r"\btl\.(\w+)", Template.load("triton").text)) - {"tanh", "make_block_ptr", "advance"}
    assert len(names) > 15
    assert [name for name in sorted(names) if not hasattr(tl, name)] == []
    assert not hasattr(tl, "tanh")


_PIECES = st.sampled_from(["`", "```", "\n```", "\n  ````\n", "~~~", "a", "\n", "\r", "\0", "\ud800", " "])


@given(st.lists(_PIECES, max_size=30).map("".join))
@example("a\n```\nout")
def test_nothing_closes_its_own_fence(text: str) -> None:
    lines = fenced(text, "python").split("\n")
    fence = lines[0].removesuffix("python")
    assert set(fence) == {"`"}
    assert [number for number, line in enumerate(lines) if line.lstrip().startswith(fence)] == [0, len(lines) - 1]
    "\n".join(lines).encode()


def test_long_text_is_cut_and_says_so() -> None:
    assert "… (900 more characters)" in fenced("x" * 1_000, limit=100)


@pytest.mark.parametrize(
    "reply",
    [
        f"Strategy: s\n{block(MODULE)}",
        f"Strategy: s\r\n{block(MODULE)}".replace("\n", "\r\n"),
        f"{block('pip install triton', 'bash')}{block(MODULE)}{block('{}', 'json')}",
        f"{block('softmax(x) as before')}{block(MODULE)}",
        f"{block(MODULE)}again:\n{block(MODULE)}",
        f"~~~py\n{MODULE}~~~",
        f"````python\n{MODULE}````",
        f"```python\n{MODULE}",
        f"```\n{MODULE}```",
        f"\ufeff{MODULE}",
    ],
)
def test_the_module_is_found(reply: str) -> None:
    assert extract_module(reply, "softmax") == MODULE


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("", "does not define softmax"),
        ("I am sorry, but I cannot help with this.", "no Python module that defines softmax"),
        (block("def gelu(x):\n    return x\n"), "does not define softmax"),
        (block("def softmax(x:\n"), "line 1: "),
        (block("    def softmax(x): pass\n"), "unexpected indent"),
        (block(MODULE) + block(MODULE.replace("return x", "return x + 1")), "2 different modules"),
        (block(MODULE + "#" * MAX_REPLY_BYTES), f"more than the {MAX_REPLY_BYTES} allowed"),
        (block("def softmax(x):\n    return '\0'\n"), "no Python module"),
        (block("softmax = " + "(" * 5_000 + ")" * 5_000), "no Python module"),
        (block("softmax = " + "-" * 50_000 + "1"), "no Python module"),
        (block("class A:\n    def softmax(self): pass\n"), "does not define softmax"),
        (block(MODULE, "diff"), "no Python module"),
    ],
)
def test_what_is_no_single_module_is_refused_with_its_reason(reply: str, said: str) -> None:
    with pytest.raises(UnusableReplyError) as caught:
        extract_module(reply, "softmax")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_the_reason_that_is_told_is_looked_for() -> None:
    """Where a block leaves the grammar takes long to find in a chain like this one, which a small model may write for ever."""
    blocks = [f"```python\nx = {'1 if n else ' * 300}{number} )\n```\n" for number in range(30)]
    begun = time.thread_time()
    with pytest.raises(UnusableReplyError, match="cannot follow"):
        extract_module("".join(blocks), "softmax")
    assert time.thread_time() - begun < 5


@given(st.text(alphabet=st.sampled_from("`~\n python:softmaxdef()\\\"'\0\ud800"), max_size=300))
def test_any_text_gives_a_module_or_a_reason(text: str) -> None:
    try:
        source = extract_module(text, "softmax")
    except UnusableReplyError:
        return
    assert any("softmax" in ast.dump(node) for node in ast.parse(source).body)


@pytest.mark.parametrize(
    ("reply", "summary"),
    [
        (f"Strategy: two rows per program.\n{block(MODULE)}", "two rows per program."),
        (f"Sure!\n\n**Strategy:** online softmax **\n{block(MODULE)}", "online softmax"),
        (f"# A better kernel\n{block(MODULE)}", "A better kernel"),
        (block("# Strategy: in code\n" + MODULE), "(no summary given)"),
        ("strategy: " + "x" * 500, "x" * 199 + "…"),
        ("Strategy: bell \x07 and\u2028line\n", "bell   and line"),
    ],
)
def test_the_summary_is_one_short_line_outside_code(reply: str, summary: str) -> None:
    assert strategy_line(reply) == summary


def test_comments_and_layout_do_not_make_another_program() -> None:
    assert same_program(MODULE, "import triton\n# faster!\ndef softmax( x ):\n    return x")
    assert not same_program(MODULE, MODULE.replace("return x", "return -x"))
    assert not same_program(MODULE, "def softmax(:")
