"""The file exchange: what is asked, who may answer how, what counts as no answer, and what a search that goes on finds again."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evo.errors import ConfigError, InputError
from evo.records import Exchange
from operators.grammar.forms import kernel
from operators.models.base import Prompt, RequestError
from operators.models.building import build_model
from operators.models.files import FilesModel
from operators.models.ledger import Ledger

PROMPT = Prompt(("Rules.", "Task."), "Improve this kernel.", "hash", 1_000, grammar=kernel())
Answering = Callable[[Path], None]


def model(folder: Path, **options: Any) -> FilesModel:
    settings = {"ledger": Ledger(None), "timeout_s": 5.0, "poll_s": 0.01, "max_retries": 0, **options}
    return FilesModel("person", folder=str(folder), **settings)


def requests(folder: Path) -> list[Path]:
    return sorted((folder / "requests").glob("*.json"))


def ask(folder: Path, answer: Answering | None = None, prompt: Prompt = PROMPT, **options: Any) -> Exchange:
    """One request, and `answer` called once with its file."""

    async def both() -> Exchange:
        task = asyncio.create_task(model(folder, **options).complete(prompt))
        while answer is not None and not requests(folder) and not task.done():
            await asyncio.sleep(0.005)
        if answer is not None and requests(folder):
            answer(requests(folder)[-1])
        return await task

    return asyncio.run(both())


def replying(**document: Any) -> Answering:
    def answer(request: Path) -> None:
        path = Path(json.loads(request.read_text())["reply_to"])
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(document))
        draft.replace(path)

    return answer


def test_a_request_holds_all_that_whoever_answers_needs(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def answer(request: Path) -> None:
        seen.append(json.loads(request.read_text()))
        replying(reply="the answer", usage={"input_tokens": 7, "output_tokens": 3})(request)

    ledger = Ledger(0.0, 50_000)
    exchange = ask(tmp_path, answer, ledger=ledger)
    (document,) = seen
    expected = {"format": 1, "model": "person", "max_tokens": 1_000, "grammar": kernel().lark, "prompt": "Improve this kernel."}
    assert document.items() >= expected.items()
    assert document["system"] == ["Rules.", "Task."]
    assert (exchange.reply, exchange.request_id, exchange.usage.tokens) == ("the answer", document["id"], 10)
    assert (ledger.spent_tokens, ledger.reserved_tokens) == (10, 0)
    assert requests(tmp_path) == [], "only open questions are left there"


def test_a_person_may_answer_with_a_file_that_is_the_reply(tmp_path: Path) -> None:
    def answer(request: Path) -> None:
        path = tmp_path / "replies" / f"{request.stem}.md"
        path.write_bytes("Strategy: é\n```python\nx = 1\n```\n\0\xff".encode("latin-1"))
        os.utime(path, (time.time() - 60, time.time() - 60))

    exchange = ask(tmp_path, answer)
    assert exchange.reply.startswith("Strategy: \ufffd")
    assert "\0" not in exchange.reply
    exchange.reply.encode()


def test_a_search_that_goes_on_takes_the_reply_to_an_equal_request(tmp_path: Path) -> None:
    first = ask(tmp_path, replying(reply="kept"))
    assert ask(tmp_path, None, timeout_s=0.1).reply == "kept"
    assert ask(tmp_path, None, timeout_s=0.1).request_id == first.request_id
    with pytest.raises(RequestError):
        ask(tmp_path, None, Prompt(("Rules.", "Task."), "Another.", "hash", 1_000), timeout_s=0.1)


def test_an_unanswered_request_is_withdrawn_and_made_again_under_a_new_id_a_bounded_number_of_times(tmp_path: Path) -> None:
    ids: set[str] = set()
    ledger = Ledger(None)

    async def watched() -> None:
        task = asyncio.create_task(model(tmp_path, ledger=ledger, timeout_s=0.2, max_retries=2).complete(PROMPT))
        while not task.done():
            ids.update(path.stem for path in requests(tmp_path))
            await asyncio.sleep(0.005)
        await task

    with pytest.raises(RequestError, match=r"no reply within 0\.2 s \(requests made: 3\)") as caught:
        asyncio.run(watched())
    assert len(ids) == 3
    assert (ledger.spent_tokens, ledger.reserved_tokens) == (0, 0), "nobody bills an unanswered file"
    assert requests(tmp_path) == []
    assert caught.value.exchange.stop_reason == "error"


def test_a_late_reply_to_an_earlier_id_is_still_taken(tmp_path: Path) -> None:
    async def late() -> Exchange:
        task = asyncio.create_task(model(tmp_path, timeout_s=0.3, max_retries=10).complete(PROMPT))
        while not requests(tmp_path):
            await asyncio.sleep(0.005)
        first = requests(tmp_path)[0].stem
        while [path.stem for path in requests(tmp_path)] in ([], [first]):
            await asyncio.sleep(0.005)
        (tmp_path / "replies" / f"{first}.json").write_text('{"reply": "late"}')
        return await task

    assert asyncio.run(late()).reply == "late"


def link(request: Path) -> None:
    secret = request.parent.parent / "secret"
    secret.write_text('{"reply": "secret"}')
    Path(json.loads(request.read_text())["reply_to"]).symlink_to(secret)


def pipe(request: Path) -> None:
    os.mkfifo(json.loads(request.read_text())["reply_to"])


def directory(request: Path) -> None:
    Path(json.loads(request.read_text())["reply_to"]).mkdir()


def huge(request: Path) -> None:
    with Path(json.loads(request.read_text())["reply_to"]).open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (link, "cannot be opened"),
        (pipe, "no regular file"),
        (directory, "no regular file"),
        (huge, "more than"),
        (replying(reply=5), "reply must be text"),
        (replying(reply="x" * 2_000_001), "at most 2000000 characters"),
        (replying(text="x"), "an object with id, reply"),
        (replying(reply="x", id="other"), "its id is another one"),
        (replying(reply="x", stop_reason="because"), "stop_reason must be one of"),
        (replying(reply="x", stop_reason=["end_turn"]), "stop_reason must be one of"),
        (replying(reply="x", usage={"dollars": 1}), "usage must be an object"),
        (replying(reply="x", usage={"input_tokens": -1}), "no count of tokens"),
    ],
)
def test_a_file_that_is_no_reply_is_a_failed_request_at_once(tmp_path: Path, answer: Answering, said: str) -> None:
    started = time.perf_counter()
    with pytest.raises(RequestError, match=said) as caught:
        ask(tmp_path, answer, timeout_s=600.0)
    assert time.perf_counter() - started < 60
    assert "\n" not in str(caught.value)


def test_a_reply_that_is_still_being_written_is_waited_for(tmp_path: Path) -> None:
    def slowly(request: Path) -> None:
        path = Path(json.loads(request.read_text())["reply_to"])
        path.write_text('{"reply": "the wh')
        asyncio.get_running_loop().call_later(0.2, lambda: path.write_text('{"reply": "the whole"}'))

    assert ask(tmp_path, slowly, timeout_s=60.0).reply == "the whole"


def test_equal_prompts_at_once_wait_for_one_reply(tmp_path: Path) -> None:
    async def two() -> list[Exchange]:
        client = model(tmp_path)
        first, second = (asyncio.create_task(client.complete(PROMPT)) for _ in range(2))
        while not requests(tmp_path):
            await asyncio.sleep(0.005)
        second.cancel()
        third = asyncio.create_task(client.complete(PROMPT))
        await asyncio.sleep(0.05)
        assert len(requests(tmp_path)) == 1
        replying(reply="for both")(requests(tmp_path)[0])
        return list(await asyncio.gather(first, third))

    assert [exchange.reply for exchange in asyncio.run(two())] == ["for both"] * 2


def test_many_equal_prompts_at_once_are_one_request_that_is_withdrawn_with_the_last_of_them(tmp_path: Path) -> None:
    async def many() -> list[Exchange | BaseException]:
        client = model(tmp_path)
        asked = [asyncio.create_task(client.complete(PROMPT)) for _ in range(50)]
        await asyncio.sleep(0)
        for task in asked[::2]:
            task.cancel()  # at any moment, also while its file is written
        while not requests(tmp_path):
            await asyncio.sleep(0.001)
        replying(reply="for all")(requests(tmp_path)[0])
        return await asyncio.gather(*asked, return_exceptions=True)

    ended = asyncio.run(many())

    assert [getattr(one, "reply", type(one)) for one in ended] == [asyncio.CancelledError, "for all"] * 25
    assert not list((tmp_path / "requests").iterdir())


def test_a_request_cancelled_while_its_file_is_written_leaves_none(tmp_path: Path) -> None:
    async def one() -> None:
        client = model(tmp_path)
        task = asyncio.create_task(client.complete(PROMPT))
        while not list((tmp_path / "requests").iterdir()) and not task.done():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for _ in range(20):
        asyncio.run(one())
        assert not list((tmp_path / "requests").iterdir())


def test_a_wrong_configuration_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"options\.folder of files; allowed: str; it must be given"):
        build_model("files", "person", ledger=Ledger(None))
    with pytest.raises(ConfigError, match="has no endpoint"):
        build_model("files", "person", ledger=Ledger(None), base_url="http://127.0.0.1", options={"folder": str(tmp_path)})
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"options\.folder.*cannot be used"):
        model(tmp_path / "file")
