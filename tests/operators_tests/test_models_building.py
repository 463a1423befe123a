"""How a configuration names a model, and the one line it gets where key, price or option is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from evo.errors import ConfigError, InputError
from operators.models.anthropic import AnthropicModel
from operators.models.base import Prompt
from operators.models.building import build_model, providers
from operators.models.ledger import Ledger
from tests.operators_tests.loopback import Loopback, reply

MODEL = "claude-opus-5-5"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_PROFILE", "ANTHROPIC_CUSTOM_HEADERS", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    settings = {"ANTHROPIC_API_KEY": "canary-key", "ANTHROPIC_CONFIG_DIR": str(tmp_path), "SSL_CERT_DIR": str(tmp_path)}
    for name, value in {**settings, "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)


def test_a_missing_key_is_told_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    for _ in range(2):
        with pytest.raises(InputError, match="set ANTHROPIC_API_KEY") as caught:
            AnthropicModel(MODEL, ledger=Ledger(1.0))
        assert "\n" not in str(caught.value)
        monkeypatch.delenv("ANTHROPIC_CONFIG_DIR", raising=False)  # the SDK then looks into the home folder
        monkeypatch.setenv("HOME", str(tmp_path))


def test_what_can_be_no_key_is_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-…")
    with pytest.raises(InputError, match="ANTHROPIC_API_KEY holds no key"):
        AnthropicModel(MODEL, ledger=Ledger(1.0))


def test_a_model_without_a_price_is_refused_under_a_cap_only(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model claude-unheard-1.*no price is known"):
        AnthropicModel("claude-unheard-1", ledger=Ledger(1.0))
    AnthropicModel("claude-unheard-1", ledger=Ledger(None))
    own = tmp_path / "own.toml"
    own.write_text(
        'dated = "2026-12-01"\n[models.claude-unheard-1]\ninput = 1\noutput = 2\nwrite_5m = 1\nwrite_1h = 1\nread = 1\n'
    )
    AnthropicModel("claude-unheard-1", ledger=Ledger(1.0), prices=str(own))


def test_a_configuration_builds_it_by_name() -> None:
    assert "anthropic" in providers()
    with Loopback([reply("yes")]) as server:
        options: dict[str, bool | int | float | str] = {"max_retries": 0, "effort": "low"}
        built = build_model("anthropic", MODEL, ledger=Ledger(1.0), max_tokens=500, base_url=server.url, options=options)
        assert (built.name, built.max_tokens) == (MODEL, 500)
        assert asyncio.run(built.complete(Prompt((), "Well?", "hash", 500))).reply == "yes"


@pytest.mark.parametrize(
    ("provider", "options", "said"),
    [
        ("antropic", {}, "allowed: anthropic"),
        ("replaying", {}, "allowed: anthropic"),
        ("anthropic", {"temperature": 1.0}, "given 'temperature'; allowed: timeout_s"),
        ("anthropic", {"effort": "huge"}, "allowed: low, medium, high"),
        ("anthropic", {"max_retries": True}, "allowed: int"),
        ("anthropic", {"max_retries": 99}, "0 … 10"),
        ("openai", {"key_env": "gsk_0123canary"}, "options.key_env of openai; it must be the name of an environment variable"),
        ("openai", {"key_env": True}, "options.key_env of openai; it must be the name"),
        ("anthropic", {"timeout_s": "long"}, "options.timeout_s of anthropic; given 'long'; allowed: float"),
    ],
)
def test_a_wrong_configuration_is_one_line(provider: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        build_model(provider, MODEL, ledger=Ledger(1.0), options=options)
    assert "\n" not in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("base_url", ["https://me:hunter2@example.org", "https://example.org/v1?key=hunter2"])
def test_a_base_url_holds_no_key(base_url: str) -> None:
    with pytest.raises(ConfigError, match="keys come from the environment") as caught:
        build_model("anthropic", MODEL, ledger=Ledger(1.0), base_url=base_url)
    assert "hunter2" not in str(caught.value)


def test_a_budget_too_small_for_one_request_is_told_before_a_run_begins() -> None:
    with pytest.raises(ConfigError, match=r"budget\.dollars; given 0\.1; one request to claude-opus-5-5 may cost \$0\.33"):
        build_model("anthropic", MODEL, ledger=Ledger(0.1))
    build_model("anthropic", MODEL, ledger=Ledger(0.1), max_tokens=2_000)
    build_model("anthropic", MODEL, ledger=Ledger(0.2), options={"batch": True})
