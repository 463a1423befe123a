"""A server that the run starts: it is waited for, started again where it died, told of in one line, and gone with whoever started it."""

from __future__ import annotations

import asyncio
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from evo.errors import ConfigError
from evo.records import Exchange
from operators.grammar.forms import kernel
from operators.models.base import Model, Prompt, RequestError
from operators.models.building import build_model
from operators.models.ledger import Ledger
from tests.evo_tests.running_processes import ROOT, wait_until
from tests.operators_tests.test_models_local import PROMPT

SERVER = f"{sys.executable} -m tests.operators_tests.small_server --port {{port}}"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the program is; reading certificate authorities takes long; and a proxy, which must not be asked for this machine."""
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")


def served(command: str = SERVER, *more: str, ledger: Ledger | None = None, **options: Any) -> Model:
    return build_model(
        "served", "own", ledger=ledger or Ledger(0.0), options={"command": f"{command} {shlex.join(more)}", **options}
    )


def ask(model: Model, times: int = 1, prompt: Prompt = PROMPT) -> list[Exchange | str]:
    """Replies, and what went wrong."""

    async def one() -> Exchange | RequestError:
        try:
            return await model.complete(prompt)
        except RequestError as error:
            return error

    async def asked() -> list[Exchange | RequestError]:
        try:
            return [await one() for _ in range(times)]
        finally:
            await model.close()

    found = asyncio.run(asked())
    failed = [item for item in found if isinstance(item, RequestError)]
    assert all(error.exchange.stop_reason == "error" and "\n" not in error.message for error in failed)
    return [item.message if isinstance(item, RequestError) else item for item in found]


def pids(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def gone(path: Path) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids(path))


def test_it_is_started_once_waited_for_and_ended_with_its_workers(tmp_path: Path) -> None:
    ledger = Ledger(0.0, 10_000)
    model = served(SERVER, "--loading-s", "0.1", "--says", "here you are", "--pids", str(tmp_path / "pids"), ledger=ledger)

    async def at_once() -> list[Exchange]:
        try:
            return await asyncio.gather(*(model.complete(PROMPT) for _ in range(3)))
        finally:
            await model.close()

    found = asyncio.run(at_once())
    assert [exchange.reply for exchange in found] == ["here you are"] * 3
    assert ledger.spent == 0
    assert ledger.spent_tokens == sum(exchange.usage.tokens for exchange in found) > 0
    assert len(pids(tmp_path / "pids")) == 2, "one server with its worker"
    assert gone(tmp_path / "pids")


@pytest.mark.slow
def test_one_that_dies_is_told_with_its_words_and_started_again(tmp_path: Path) -> None:
    first, failed, again = ask(
        served(SERVER, "--says", "hello", "--answers", "1", "--pids", str(tmp_path / "pids"), max_retries=0), 3
    )
    assert isinstance(first, Exchange)
    assert isinstance(failed, str)
    assert failed.startswith("own: the connection failed")
    assert failed.endswith("its server ended (status 3): CUDA out of memory")
    assert isinstance(again, Exchange)
    assert len(pids(tmp_path / "pids")) == 4
    assert gone(tmp_path / "pids")


def test_what_cannot_be_started_is_one_line_and_not_tried_for_ever(tmp_path: Path) -> None:
    missing = ask(served("/nothing/llama-server --port {port}"), 5)
    assert missing[0] == "own: its server ended (status 127): /nothing/llama-server cannot be started: No such file or directory"
    assert missing[0] == missing[2]
    assert missing[3] == missing[4] == f"{missing[0]}; it is not started again after 3 times without an answer"
    (broken,) = ask(served(SERVER, "--broken", "error: no such model: /m.gguf"))
    assert broken == "own: its server ended (status 1): error: no such model: /m.gguf"


def test_one_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    (late,) = ask(served(SERVER, "--loading-s", "60", "--pids", str(tmp_path / "pids"), start_s=0.4))
    assert isinstance(late, str)
    assert late.startswith("own: its server was not ready within 0.4 s (options.start_s) and was ended")
    assert gone(tmp_path / "pids")


def test_a_grammar_goes_into_the_field_of_its_server() -> None:
    assert served(server="llama_cpp").supports_grammar
    assert not served().supports_grammar
    assert isinstance(
        ask(served(SERVER, "--says", "hello", server="llama_cpp"), prompt=Prompt((), "x", "hash", 20, kernel()))[0], Exchange
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"command": "llama-server --port 8080"}, "{port} must stand in it"),
        ({"command": ""}, "{port} must stand in it"),
        ({"command": "a 'b {port}"}, "No closing quotation"),
        ({"command": 7}, "options.command"),
        ({}, "options.command"),
        ({"command": "a {port}", "start_s": 0.0}, "start_s"),
        ({"command": "a {port}", "server": "llama"}, "llama_cpp"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build_model("served", "own", ledger=Ledger(None), options=options)
    assert says in str(refused.value)
    with pytest.raises(ConfigError, match="base_url"):
        build_model("served", "own", ledger=Ledger(None), base_url="http://127.0.0.1:1/v1", options={"command": "a {port}"})


@pytest.mark.slow
def test_nothing_is_left_of_it_when_its_owner_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    code = f"""
import asyncio
from tests.operators_tests.test_models_served import PROMPT, SERVER, served
async def main():
    model = served(SERVER, "--says", "hello", "--pids", {str(told)!r})
    await model.complete(PROMPT)
    print("answered", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"answered\n"
        assert not gone(told)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
    begun = time.monotonic()
    wait_until(lambda: gone(told), "end of the server and its worker", 20.0)
    assert time.monotonic() - begun < 10
