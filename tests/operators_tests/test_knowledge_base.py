"""Knowledge for prompts: every sheet is sound and true of the installed compiler, and only what fits is selected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import triton
import triton.language as tl

from evo.errors import InputError
from evo.tasks.loading import builtin_tasks, load_task
from evo.tracing.targets import TARGETS
from operators.knowledge_base import CHARACTERS_PER_TOKEN, EVIDENCE_TOKENS, RUN_TOKENS, TASK_TOKENS, About, KnowledgeBase, Sheet

BASE = KnowledgeBase.load()
VERSIONS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0", "3.12.0+gitabc")


@pytest.mark.parametrize("sheet", BASE.sheets, ids=lambda sheet: sheet.name)
def test_a_sheet_is_short_has_sources_and_says_when_it_is_wanted(sheet: Sheet) -> None:
    assert sheet.sources
    assert sheet.tokens <= 450
    wanted = {
        About.HARDWARE: sheet.targets,
        About.TRITON: sheet.versions,
        About.TECHNIQUE: sheet.kinds and sheet.words,
        About.NUMERICS: True,
        About.CURE: sheet.errors,
        About.BOUND: sheet.bounds,
    }
    assert wanted[sheet.about]
    assert "http" not in sheet.text, "sources are for readers of the file"


@pytest.mark.parametrize("target", [*TARGETS, "hip:gfx950"])
def test_every_target_has_a_sheet(target: str) -> None:
    text = BASE.for_run(target, "3.9.0")
    assert "# The device" in text
    assert text.count("# The device") == 1


def test_data_sheets_agree_with_the_targets_that_latencies_are_modelled_for() -> None:
    for key, target in TARGETS.items():
        text = BASE.for_run(key, "3.9.0").replace(",", "")
        figures = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)}
        assert target.multiprocessors in figures, key
        rates = (target.bandwidth / 1e12, target.bandwidth / 1e9, round(target.bandwidth / 1e12, 1))
        assert any(rate in figures for rate in rates), key
        assert {target.tensor_flops / 1e12, round(target.tensor_flops / 1e15, 2)} & figures, key
        assert target.l2_bytes / 2**20 in figures, key


@pytest.mark.parametrize("version", VERSIONS)
def test_one_sheet_per_version_of_triton(version: str) -> None:
    assert BASE.for_run("cuda:90", version).count("# This version of Triton") == 1


def test_a_version_that_cannot_be_read_gets_no_sheet() -> None:
    assert "This version" not in BASE.for_run("cuda:90", "none")


def test_what_is_said_of_the_installed_triton_is_true() -> None:
    text = BASE.for_run("cuda:90", triton.__version__)
    missing = re.search(r"Not there yet: (.*?)(\(|\.\n|\.$)", text, re.DOTALL)
    for name in re.findall(r"`tl\.(\w+)`", missing[1] if missing else ""):
        if name not in ("topk", "cat"):
            assert not hasattr(tl, name), name
    assert hasattr(tl, "advance") == ("still exist" in text)
    assert hasattr(tl, "atomic_load") == ("(3.9)" in text)
    cure = next(sheet for sheet in BASE.sheets if sheet.name == "cure_missing_name").text
    listed = re.search(r"There is no (.*?):", cure)
    assert listed is not None
    assert [name for name in re.findall(r"`tl\.(\w+)`", listed[1]) if hasattr(tl, name)] == []


@pytest.mark.parametrize("name", builtin_tasks())
def test_every_task_of_the_package_gets_its_technique_within_the_budget(name: str) -> None:
    task = load_task(name)
    text = BASE.for_task(task.kind, task.description)
    assert text.startswith("# Technique")
    assert "# Numerics" in text
    assert len(text) <= TASK_TOKENS * CHARACTERS_PER_TOKEN + 100


def test_a_task_of_no_kind_is_known_by_its_words() -> None:
    assert "# Technique: attention" in BASE.for_task("other", "Causal attention over heads.")
    assert "# Technique: scans" in BASE.for_task("other", "torch.cumsum(x, dim=-1)")
    assert "# Technique" not in BASE.for_task("other", "Return the argument.")


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        ("Block pointers have been removed in favor of the tensor descriptor API", "no block pointers"),
        ("arange's range must be a power of 2", "powers of two"),
        ("AttributeError(\"module 'triton.language' has no attribute 'tanh'\")", "tl.sigmoid"),
        ("Cannot make_shape_compatible: incompatible dimensions at index 0: 16 and 32", "other shapes"),
        ("out of resource: shared memory, Required: 262144, Hardware limit: 232448", "fewer stages"),
        ("Loop-carried variable acc has initial type <[64], fp16>", "within a loop"),
        ("unsupported AST node type: Break", "small language"),
        ("Only some rows are affected: check masks, offsets and the grid.", "read the map"),
        ("torch computes aten._softmax; write it in Triton (a task may list allowed operators)", "stands outside of a kernel"),
        ("case c: item() reads a value on the host", "before it can launch"),
        ("Input shapes should have M >= 1, N >= 1 and K >= 16", "K of at least 16"),
        ("AssertionError('We use SCF, so the loop body should only have one block')", "`return` in a loop"),
        ("AttributeError(\"'tuple' object has no attribute append\")", "lists that grow"),
        ("ValueError(\"'append' is not in list\")", "lists that grow"),
        ("two calls on equal shapes launch different things", "did not launch the same"),
        ("CONFIG['BLOCK'] = 3 is not among SPACE['BLOCK'] = [1, 2]", "literal dicts"),
        ("precision is lost inside. tl.dot on float32 uses TF32", "lost precision"),
    ],
)
def test_an_error_brings_its_cure_and_no_other_kind_of_sheet(message: str, cure: str) -> None:
    text = BASE.for_evidence(message=message)
    assert cure in text
    assert "# The device" not in text
    assert len(text) <= EVIDENCE_TOKENS * CHARACTERS_PER_TOKEN + 100


def test_no_error_and_no_bound_bring_nothing() -> None:
    assert BASE.for_evidence() == ""
    assert "waiting limits it" in BASE.for_evidence(bounds=("latency",))


def test_the_budget_is_kept_by_leaving_whole_sheets_out() -> None:
    assert BASE.for_run("cuda:90", "3.9.0", tokens=0) == ""
    whole, part = BASE.for_run("cuda:90", "3.9.0"), BASE.for_run("cuda:90", "3.9.0", tokens=350)
    assert part in whole
    assert len(whole) <= RUN_TOKENS * CHARACTERS_PER_TOKEN


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# no front matter", "front matter"),
        ("---\nabout: hardware\n---\n", "no text"),
        ("---\nabout: gossip\n---\nx", "gossip"),
        ("---\nabout: cure\nmood: good\n---\nx", "mood"),
        ("---\nabout: cure\nerrors: (\n---\nx", "sheet.md"),
        ("---\nabout: triton\nversions: new\n---\nx", "versions"),
    ],
)
def test_a_malformed_sheet_is_an_error_that_names_it(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "sheet.md").write_text(text)
    with pytest.raises(InputError) as caught:
        KnowledgeBase.load(tmp_path)
    assert said in str(caught.value)
    assert "sheet.md" in str(caught.value)
