"""Data sets from stores: who is in them and who is not, in which part, and what no file of them may hold."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from evo.commands.dataset import dataset_command
from evo.dataset.columns import COLUMNS, Format
from evo.dataset.making import DataSet, make_data_set
from evo.dataset.writing import write_data_set
from evo.errors import InputError, StoreError
from evo.records import LatencyKind, Variant
from evo.tasks.loading import load_task, starting_sources
from operators.replies import module_of
from population_store.base import RunHeader
from population_store.opening import open_store
from population_store.schema import REVISIONS, VERSION_TABLE
from tests.evo_tests.dataset_store import OWN_KERNEL, SOFTMAX, Recorded, duplicate, exchange, failed, online, own_task, passed
from tests.evo_tests.reward_judges import reply_of

FASTER, SLOWER, NOISY, WRONG, MENDED, WRITTEN, COPY, UNJUDGED, ESTIMATED = map(online, range(9))


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Softmax: a faster child of a rule, a slower one, one that may be faster or not, a wrong one that is mended by a model, one that a
    model wrote faster still after a correction, one that launches the same, one without a verdict, and one that was only estimated."""
    run = Recorded(tmp_path / "night.sqlite", ["softmax", "rms_norm"])
    start = run.start("softmax", tuned=1.25)
    run.start("rms_norm")
    run.child([start], FASTER, passed(FASTER, 1.5))
    run.child([start], SLOWER, passed(SLOWER, 0.8))
    run.child([start], NOISY, passed(NOISY, 1.01))
    run.child([start], WRONG, failed(WRONG))
    mended = exchange("mend this", reply_of(MENDED.source))
    run.child([WRONG], MENDED, passed(MENDED, 0.9), operator="llm_repair", exchanges=[mended])
    asked = [exchange("improve this", "sorry"), exchange("that was unusable", reply_of(WRITTEN.source))]
    run.child([FASTER], WRITTEN, passed(WRITTEN, 2.0), operator="llm_optimize", exchanges=asked, strategy="one pass")
    run.child([FASTER], COPY, passed(COPY, 2.0, plan=f"plan of {WRITTEN.variant_id}"))
    run.child([start], UNJUDGED, None)
    run.child([start], ESTIMATED, passed(ESTIMATED, 9.0, kind=LatencyKind.MODELLED))
    run.nothing(start)
    return run.close()


def rows(data: DataSet) -> list[Mapping[str, Any]]:
    return [row for part in data.rows.values() for row in part]


def of(data: DataSet, task: str = "softmax") -> list[Mapping[str, Any]]:
    return [row for row in rows(data) if row["task"] == task]


def names(found: Sequence[Mapping[str, Any]], column: str = "variant") -> list[str]:
    known = {item.variant_id: name for name, item in globals().items() if isinstance(item, Variant)}
    return [known.get(row[column], row["origin"]) for row in found]


def test_answers_are_those_that_are_right_and_surely_better(store: str) -> None:
    found = of(make_data_set([store], Format.SFT))
    assert names(found) == ["start", "tuned", "FASTER", "MENDED", "WRITTEN"]
    assert [row["origin"] for row in found] == ["start", "tuned", "rule", "model", "model"]
    assert [row["ask"] for row in found] == ["generate", "generate", "improve", "repair", "improve"]
    for row in found:
        assert [message["role"] for message in row["prompt"] + row["completion"]] == ["user", "assistant"]
        assert set(row) == set(COLUMNS[Format.SFT])


def test_what_a_model_was_asked_and_said_stands_as_it_was(store: str) -> None:
    written = of(make_data_set([store], Format.SFT))[-1]
    assert written["prompt"][0]["content"] == "improve this", "not what its correction was asked"
    assert written["completion"][0]["content"] == reply_of(WRITTEN.source)
    assert (written["model"], written["operator"], written["parents"]) == ("model-1", "llm_optimize", [FASTER.variant_id])
    assert (written["speedup"], written["speedup_low"], written["parent_speedup"]) == (2.0, 1.96, 1.5)
    assert written["cases"][0]["speedup_high"] == pytest.approx(2.04)


def test_what_a_rule_did_is_told_as_a_model_would(store: str) -> None:
    faster = of(make_data_set([store], Format.SFT))[2]
    prompt, reply = faster["prompt"][0]["content"], faster["completion"][0]["content"]
    assert SOFTMAX.strip() in prompt
    assert "Write a faster module" in prompt
    assert reply.startswith("Strategy: larger tiles\n")
    assert module_of(reply, "softmax", None) == FASTER.source


def test_error_evidence_is_in_the_question_and_beside_it(store: str) -> None:
    mended = of(make_data_set([store], Format.PREFERENCE)), of(make_data_set([store], Format.SFT))[3]
    assert mended[1]["parent_message"] == "row 3 is wrong"
    assert mended[1]["parent_status"] == "wrong_values"
    question = next(row for row in of(make_data_set([store], Format.GRPO)) if row["ask"] == "repair" and not row["model"])
    assert "row 3 is wrong" in question["prompt"][0]["content"]


def test_the_tuned_start_is_preferred_to_the_one_as_it_was_written(store: str) -> None:
    pairs = of(make_data_set([store], Format.PREFERENCE))
    tuned = next(row for row in pairs if row["origin"] == "tuned")
    assert tuned["rejected_origin"] == "start"
    assert tuned["tuned_gain"] == pytest.approx(1.25)
    assert '"num_warps": 4' in tuned["chosen"][0]["content"]
    assert '"num_warps": 8' in tuned["rejected"][0]["content"]


def test_pairs_are_answers_to_one_question_of_which_one_is_surely_worse(store: str) -> None:
    pairs = of(make_data_set([store], Format.PREFERENCE))
    about = [(name, other) for name, other in zip(names(pairs), names(pairs, "rejected_variant"), strict=True)]
    assert about[1:] == [("FASTER", "WRONG"), ("FASTER", "SLOWER")]
    wrong, slower = pairs[1:]
    assert (wrong["rejected_status"], wrong["rejected_message"], wrong["rejected_speedup"]) == (
        "wrong_values",
        "row 3 is wrong",
        None,
    )
    assert (slower["rejected_status"], slower["rejected_message"], slower["rejected_speedup"]) == ("passed", "", 0.8)
    assert module_of(wrong["chosen"][0]["content"], "softmax", None) == FASTER.source
    assert module_of(wrong["rejected"][0]["content"], "softmax", None) == WRONG.source


def test_questions_carry_what_their_reward_needs(store: str) -> None:
    found = of(make_data_set([store], Format.GRPO))
    ours = [row for row in found if not row["model"]]
    assert [row["ask"] for row in ours] == ["generate", "improve", "repair", "improve"]
    generate, improve, repair, _ = ours
    assert (generate["baseline"], generate["shown"], generate["shown_plans"]) == ("", [], [])
    assert (improve["baseline"], improve["shown"]) == (SOFTMAX, [SOFTMAX])
    assert (repair["baseline"], repair["shown"], repair["shown_plans"]) == ("", [WRONG.source], [f"plan of {WRONG.variant_id}"])
    assert [row["prompt"][0]["content"] for row in found if row["model"]] == ["mend this", "improve this"]
    assert repair["reward_model"] == {"style": "rule", "ground_truth": "softmax"}
    assert {key: repair["extra_info"][key] for key in ("baseline", "shown", "shown_plans")} == {
        key: repair[key] for key in ("baseline", "shown", "shown_plans")
    }


def test_nothing_is_asked_about_a_variant_of_which_nothing_is_known(tmp_path: Path) -> None:
    run = Recorded(tmp_path / "a.sqlite", ["softmax"])
    start = run.start("softmax")
    again = run.child([start], FASTER, duplicate(FASTER, start))
    pending = run.child([start], SLOWER, None)
    for parent, child in ((again, WRITTEN), (pending, MENDED)):
        run.child([parent], child, passed(child, 2.0))
    found = of(make_data_set([run.close()], Format.GRPO))
    assert [row["ask"] for row in found] == ["generate", "improve"]


def test_a_question_about_two_kernels_takes_neither_for_an_answer(tmp_path: Path) -> None:
    run = Recorded(tmp_path / "a.sqlite", ["softmax"])
    start = run.start("softmax")
    other = run.child([start], FASTER, passed(FASTER, 1.5))
    asked = exchange("cross these", reply_of(WRITTEN.source))
    run.child([other, start], WRITTEN, passed(WRITTEN, 1.9), operator="llm_crossover", exchanges=[asked])
    (crossed,) = [row for row in of(make_data_set([run.close()], Format.GRPO)) if row["model"]]
    assert crossed["shown"] == [FASTER.source, SOFTMAX]
    assert len(crossed["shown_plans"]) == 2


def test_a_task_without_a_kernel_of_its_own_is_measured_against_what_the_run_started_from(tmp_path: Path) -> None:
    own = own_task(tmp_path / "mine")
    own.write_text(own.read_text().replace('("squares_kernel.py",)', "()"))
    run = Recorded(tmp_path / "a.sqlite", [str(own)], seeds={"squares": [OWN_KERNEL]})
    run.start("squares", OWN_KERNEL)
    (row,) = of(make_data_set([run.close()], Format.GRPO), "tasks/squares/squares.py")
    assert (row["ask"], row["baseline"], row["extra_info"]["baseline"]) == ("generate", OWN_KERNEL, OWN_KERNEL)


def test_what_torch_compile_wrote_is_said_to_be_its(tmp_path: Path) -> None:
    seed = SOFTMAX.replace('"num_warps": 8', '"num_warps": 1').replace("softmax_kernel", "triton_per_fused_kernel")
    run = Recorded(tmp_path / "a.sqlite", ["softmax"], seeds={"softmax": [seed]})
    start = run.start("softmax", seed, tuned=1.5)
    run.child([start], FASTER, passed(FASTER, 1.5))
    found = of(make_data_set([run.close()], Format.SFT))
    assert [row["origin"] for row in found] == ["compiler", "tuned", "rule"]
    assert "reference" in found[0]["prompt"][0]["content"]
    assert found[2]["parents"] == [start.variant_id]


def test_a_verification_that_failed_takes_a_variant_out(tmp_path: Path) -> None:
    run = Recorded(tmp_path / "a.sqlite", ["softmax"])
    start = run.start("softmax")
    run.child([start], FASTER, passed(FASTER, 1.5))
    run.verify(1, failed(FASTER))
    assert names(of(make_data_set([run.close()], Format.SFT))) == ["start"]


def test_simulated_verdicts_are_of_no_kernel(tmp_path: Path) -> None:
    run = Recorded(tmp_path / "a.sqlite", ["softmax"])
    run.child([], FASTER, passed(FASTER, 1.5, kind=LatencyKind.SIMULATED), operator="start")
    with pytest.raises(InputError, match="no rows for --format sft"):
        make_data_set([run.close()], Format.SFT)


def test_kernels_of_two_stores_that_replay_alike_are_told_once(store: str, tmp_path: Path) -> None:
    run = Recorded(tmp_path / "b.sqlite", ["softmax"], name="day")
    start = run.start("softmax")
    renamed = Variant("softmax", FASTER.source.replace("numerator", "above"))
    run.child([start], renamed, passed(renamed, 1.6, plan=f"plan of {FASTER.variant_id}"))
    data = make_data_set([store, run.close()], Format.SFT)
    assert [row["run"] for row in of(data)] == ["night"] * 5
    assert data.left_out["another row has a kernel that replays alike"] == 3


def test_of_kernels_that_replay_alike_the_measured_one_is_told(tmp_path: Path) -> None:
    places = []
    for kind in (LatencyKind.MODELLED, LatencyKind.MEASURED, LatencyKind.MODELLED):
        run = Recorded(tmp_path / f"{len(places)}.sqlite", ["softmax"], name=f"{kind.value} {len(places)}")
        start = run.start("softmax", kind=kind)
        run.child([start], FASTER, passed(FASTER, 1.5, kind=kind))
        places.append(run.close())
    found = of(make_data_set(places, Format.SFT))
    assert [(row["origin"], row["run"], row["latency_kind"]) for row in found] == [
        ("start", "measured 1", "measured"),
        ("rule", "measured 1", "measured"),
    ]


def test_a_question_is_another_one_for_another_target(tmp_path: Path) -> None:
    places = []
    for target in ("cuda:90", "hip:gfx942"):
        run = Recorded(tmp_path / f"{target[:3]}.sqlite", ["softmax"], target=target)
        run.start("softmax")
        places.append(run.close())
    found = of(make_data_set(places, Format.GRPO))
    assert [(row["ask"], row["target"]) for row in found] == [("generate", "cuda:90"), ("generate", "hip:gfx942")]


@pytest.mark.parametrize("licence", ["MIT", "(MIT OR Apache-2.0)", "GPL-2.0-only WITH Classpath-exception-2.0"])
def test_the_licence_of_a_task_is_what_its_file_says(tmp_path: Path, licence: str) -> None:
    own = own_task(tmp_path / "mine")
    own.write_text(f"# SPDX-License-Identifier: {licence}\n{own.read_text()}")
    run = Recorded(tmp_path / "a.sqlite", [str(own)])
    run.start("squares", OWN_KERNEL)
    (row,) = rows(make_data_set([run.close()], Format.GRPO))
    assert row["licence"] == licence


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("chosen", list(Format))
def test_the_same_store_gives_the_same_bytes_and_both_forms_the_same_rows(store: str, tmp_path: Path, chosen: Format) -> None:
    import pyarrow.parquet as pq

    write_data_set(make_data_set([store], chosen), tmp_path / "one")
    write_data_set(make_data_set([store], chosen), tmp_path / "two")
    one = files(tmp_path / "one")
    assert one == files(tmp_path / "two")
    assert {"README.md", "dataset.json", "train.jsonl", "train.parquet"} <= set(one)
    for split in ("train", "test"):
        if f"{split}.jsonl" in one:
            lines = [json.loads(line) for line in one[f"{split}.jsonl"].decode().splitlines()]
            assert pq.read_table(tmp_path / "one" / f"{split}.parquet").to_pylist() == lines


def test_the_card_says_whose_it_is_and_what_was_estimated(tmp_path: Path) -> None:
    own = own_task(tmp_path / "mine")
    run = Recorded(tmp_path / "a.sqlite", [str(own), "softmax"])
    run.start("squares", OWN_KERNEL, kind=LatencyKind.MODELLED)
    start = run.start("softmax")
    run.child([start], FASTER, passed(FASTER, 2.0), operator="llm_optimize", exchanges=[exchange("p", reply_of(FASTER.source))])
    write_data_set(make_data_set([run.close()], Format.SFT), tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    for text in (
        "license: other",
        "| `licence` | Apache-2.0 | 2 |",
        "| `licence` | LicenseRef-unknown | 1 |",
        "| `model` | model-1 | 1 |",
    ):
        assert text in card
    assert "**estimate, not a measurement**" in card
    assert "| night | 7 | 2026-01-01T00:00:00+00:00 | cuda:90 | 3.9.0 |" in card


def test_a_task_of_the_user_goes_along_and_can_be_loaded_from_there(tmp_path: Path) -> None:
    own = own_task(tmp_path / "mine")
    run = Recorded(tmp_path / "a.sqlite", [str(own)])
    run.start("squares", OWN_KERNEL)
    data = make_data_set([run.close()], Format.GRPO)
    write_data_set(data, tmp_path / "out")
    own.unlink()
    (row,) = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text().splitlines()]
    task = load_task(row["task"], tmp_path / "out")
    assert (task.name, starting_sources(task)) == ("squares", (OWN_KERNEL,))


def test_a_task_that_is_gone_is_left_out_and_said(tmp_path: Path) -> None:
    own = own_task(tmp_path / "mine")
    run = Recorded(tmp_path / "a.sqlite", [str(own), "softmax"])
    run.start("squares", OWN_KERNEL)
    run.start("softmax")
    place = run.close()
    own.write_text(own.read_text() + "\n# changed\n")
    data = make_data_set([place], Format.SFT)
    assert {row["task"] for row in rows(data)} == {"softmax"}
    assert "changed since the run began" in data.skipped["squares"]


def test_the_command_tells_what_it_wrote(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dataset_command([store], "sft", tmp_path / "out") == 0
    out, err = capsys.readouterr()
    assert sorted(re.findall(r"\d+ rows of 1 tasks", out.splitlines()[-1])) == ["1 rows of 1 tasks", "5 rows of 1 tasks"]
    assert "another row has a kernel that replays alike" in err
    dataset_command([store], "grpo", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "dataset.json").read_text())["format"] == "grpo", "an earlier data set is replaced"


def test_what_cannot_be_used_is_one_line(store: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--format.*'csv'.*sft, preference, grpo"):
        dataset_command([store], "csv", tmp_path / "out")
    with pytest.raises(StoreError, match=r"absent\.sqlite"):
        dataset_command([str(tmp_path / "absent.sqlite")], "sft", tmp_path / "out")
    empty = str(tmp_path / "empty.sqlite")
    older = str(tmp_path / "older.sqlite")
    open_store(older, header=RunHeader("older", 0, "{}", "{}", "{}", "2026-01-01")).close()
    with closing(sqlite3.connect(older)) as connection, connection:
        connection.execute(f"update {VERSION_TABLE} set version_num = '{REVISIONS[0]}'")
    with pytest.raises(StoreError, match=r"older\.sqlite.*an older schema.*open it for writing once"):
        dataset_command([older], "sft", tmp_path / "out")
    open_store(empty, header=RunHeader("empty", 0, "{}", "{}", "{}", "2026-01-01")).close()
    with pytest.raises(InputError, match=r"empty\.sqlite.*without a verdict"):
        dataset_command([empty], "sft", tmp_path / "out")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        dataset_command([store], "sft", tmp_path / "taken")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        dataset_command([store], "sft", tmp_path / "file" / "out")
    assert not (tmp_path / "out").exists()
