"""What no data set may hold: kernels of test tasks in training, keys and passwords in any file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo.dataset.cleaning import has_secret, without_homes
from evo.dataset.columns import Format
from evo.dataset.leaking import Shown, groups_of, near_pairs, tasks_for_test
from evo.dataset.making import make_data_set
from evo.dataset.writing import write_data_set
from evo.errors import InputError
from evo.records import Variant
from tests.evo_tests.dataset_store import OWN_KERNEL, SOFTMAX, Recorded, exchange, failed, online, own_task, passed
from tests.evo_tests.reward_judges import reply_of

CANARY = "sk-ant-canary-0123456789abcdef"
FASTER, SLOWER, WRONG, MENDED = map(online, range(4))


@given(st.lists(st.frozensets(st.integers(0, 30), max_size=25), max_size=12), st.sampled_from([0.5, 0.8, 0.95, 1.0]))
def test_near_pairs_are_all_pairs_that_are_near(sets: list[frozenset[int]], least: float) -> None:
    def near(a: frozenset[int], b: frozenset[int]) -> bool:
        return len(a & b) >= least * len(a | b) - 1e-9 if a | b else False

    wanted = {(i, j) for j in range(len(sets)) for i in range(j) if near(sets[i], sets[j])}
    found = list(near_pairs(sets, least))
    assert len(found) == len(set(found))
    assert set(found) == wanted


def test_tasks_that_share_a_kernel_are_in_one_part() -> None:
    copy = SOFTMAX.replace("softmax", "attention").replace("numerator", "above")
    kernels = {"a": [SOFTMAX], "b": [OWN_KERNEL], "c": [copy], "d": []}
    assert groups_of(kernels, {}) == (("a", "c"), ("b",), ("d",))
    assert groups_of(kernels, {"b": ["same"], "d": ["same"], "a": ["other"]}) == (("a", "c"), ("b", "d"))


@given(st.lists(st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=3), min_size=1, max_size=9))
def test_there_is_always_something_to_train_on_and_mostly_to_test(groups: list[list[str]]) -> None:
    seen: set[str] = set()
    parts = [
        tuple(part)
        for group in groups
        if (part := [task for task in dict.fromkeys(group) if not (task in seen or seen.add(task))])
    ]  # type: ignore[func-returns-value]
    if not parts:
        return
    test = tasks_for_test(parts)
    assert all(set(part) <= test or not set(part) & test for part in parts)
    assert any(not set(part) & test for part in parts)
    assert bool(test) == (len(parts) > 1)


def test_a_task_stays_in_its_part_as_others_come() -> None:
    many = [(f"task_{number}",) for number in range(200)]
    test = tasks_for_test(many)
    assert 10 <= len(test) <= 30
    assert tasks_for_test(many[:150]) == {task for task in test if int(task[5:]) < 150}


def test_a_prompt_that_shows_a_kernel_for_testing_is_found() -> None:
    shown = Shown([OWN_KERNEL, "x = 1"])
    assert shown.in_text(f"Similar kernels:\n\n```python\n# not mine\n{OWN_KERNEL}```\nNow yours.")
    assert not shown.in_text(f"```python\n{SOFTMAX}```\nx = 1")


def two_tasks(folder: Path) -> tuple[Recorded, dict[str, Variant], str, str, Variant]:
    """A run of two tasks with their starts, the names of the one for training and the one for testing, and a child of the former."""
    run = Recorded(folder / "a.sqlite", ["softmax", str(own_task(folder / "mine"))])
    starts = {"softmax": run.start("softmax"), "squares": run.start("squares", OWN_KERNEL)}
    (test,) = tasks_for_test([("softmax",), ("squares",)])
    train = next(name for name in starts if name != test)
    sources = {"softmax": FASTER.source, "squares": OWN_KERNEL.replace("x * x", "x * x + tl.exp(x - x) - 1.0")}
    return run, starts, train, test, Variant(train, sources[train])


def test_training_never_sees_what_is_for_testing(tmp_path: Path) -> None:
    run, starts, train, test, child = two_tasks(tmp_path)
    leaking = exchange(f"An example:\n\n```python\n{starts[test].source}```", reply_of(child.source))
    run.child([starts[train]], child, passed(child, 2.0), operator="llm_optimize", exchanges=[leaking])
    data = make_data_set([run.close()], Format.SFT)
    assert data.left_out == {"it shows a kernel of a task for testing": 1}
    assert data.tasks == {"train": (train,), "test": (test,)}


def test_training_never_says_what_is_for_testing(tmp_path: Path) -> None:
    """An answer may hold a kernel of another task beside its own, also one that failed."""
    run, starts, train, test, good = two_tasks(tmp_path)
    fused = Variant(train, good.source + "\n\n" + starts[test].source.replace("\nimport", "\n# import"))
    wrong = Variant(train, fused.source.replace("x * x", "x + x") + "# wrong\n")
    run.child([starts[train]], fused, passed(fused, 3.0))
    run.child([starts[train]], good, passed(good, 2.0))
    run.child([starts[train]], wrong, failed(wrong))
    place = run.close()
    for chosen in (Format.SFT, Format.PREFERENCE):
        data = make_data_set([place], chosen)
        assert data.left_out["it shows a kernel of a task for testing"] >= 1
        for row in data.rows.get("train", ()):
            said = [message["content"] for name in ("completion", "chosen", "rejected") for message in row.get(name, ())]
            assert said
            assert not any(Shown([starts[test].source]).in_text(text) for text in said)


def secret_store(tmp_path: Path, where: str) -> str:
    run = Recorded(tmp_path / f"{where}.sqlite", ["softmax"])
    start = run.start("softmax")
    asked = exchange("improve" + CANARY * (where == "prompt"), reply_of(FASTER.source) + CANARY * (where == "reply"))
    run.child(
        [start], FASTER, passed(FASTER, 1.5), operator="llm_optimize", exchanges=[asked], strategy=CANARY * (where == "strategy")
    )
    source = SLOWER.source + f"# {CANARY}\n" * (where == "source")
    slower = run.child([start], Variant("softmax", source), passed(Variant("softmax", source), 1.4))
    message = CANARY if where == "message" else "row 3"
    bad = run.child([slower], WRONG, failed(WRONG, message))
    run.child([bad], MENDED, passed(MENDED, 1.0))
    return run.close()


@pytest.mark.parametrize("where", ["prompt", "reply", "strategy", "source", "message"])
def test_no_file_of_a_data_set_has_a_secret(tmp_path: Path, where: str) -> None:
    place, left = secret_store(tmp_path, where), 0
    for chosen in Format:
        try:
            data = make_data_set([place], chosen)
        except InputError as error:  # nothing is left to write
            left += "looks like a key" in str(error)
            continue
        left += sum(data.left_out.values())
        write_data_set(data, tmp_path / chosen.value)
        for path in (tmp_path / chosen.value).rglob("*"):
            assert path.is_dir() or CANARY.encode() not in path.read_bytes(), path
    assert left


def test_a_secret_of_this_machine_is_known_whatever_its_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "larger tiles")
    run = Recorded(tmp_path / "a.sqlite", ["softmax"])
    run.child([run.start("softmax")], FASTER, passed(FASTER, 1.5))
    (row,) = make_data_set([run.close()], Format.SFT).rows["train"]
    assert row["origin"] == "start"


def test_a_key_is_known_by_the_variable_that_a_run_took_it_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_MODEL", "larger tiles")
    run = Recorded(
        tmp_path / "a.sqlite", ["softmax"], models=[{"provider": "openai", "name": "m", "options": {"key_env": "HOUSE_MODEL"}}]
    )
    run.child([run.start("softmax")], FASTER, passed(FASTER, 1.5))
    (row,) = make_data_set([run.close()], Format.SFT).rows["train"]
    assert row["origin"] == "start"


@pytest.mark.parametrize("where", ["task", "kernel"])
def test_a_task_with_a_secret_does_not_go_along(tmp_path: Path, where: str) -> None:
    own = own_task(tmp_path / "mine")
    path = own if where == "task" else own.with_name("squares_kernel.py")
    path.write_text(path.read_text() + f"\nTOKEN = {CANARY!r}\n")
    run = Recorded(tmp_path / "a.sqlite", ["softmax", str(own)])
    run.start("softmax")
    run.start("squares", OWN_KERNEL)
    data = make_data_set([run.close()], Format.GRPO)
    assert "what looks like a key" in data.skipped["squares"]
    write_data_set(data, tmp_path / "out")
    for item in (tmp_path / "out").rglob("*"):
        assert item.is_dir() or CANARY.encode() not in item.read_bytes(), item


@pytest.mark.parametrize(
    "text",
    [
        "nvapi-" + "a-B_" * 10,
        "gsk_" + "a1B" * 10,
        "fw_" + "a1B" * 8,
        "xai-" + "a1B" * 10,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ1c2VyIn0.c2lnbmF0dXJlc2ln",
        "hf_" + "a" * 30,
        "Authorization: Bearer abc.def-ghi_jkl123456",
        "AKIA" + "A" * 16,
        "-----BEGIN RSA PRIVATE KEY-----",
        "postgresql://me:pass@host/x",
    ],
)
def test_shapes_of_secrets(text: str) -> None:
    assert has_secret([f"x {text} y"])


def test_code_has_no_shape_of_a_secret() -> None:
    sources = [path.read_text() for path in (Path(__file__).parents[2] / "evo" / "tasks" / "starts").glob("*.py")]
    assert not has_secret(sources)
    assert (
        without_homes('File "/home/jo/x/kernel.py", /Users/jo/y and /usr/lib, /root/z')
        == 'File "~/x/kernel.py", ~/y and /usr/lib, ~/z'
    )
