"""Builds the model that a configuration names; the provider's SDK is imported only then."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

import operators.models
from evo.errors import ConfigError
from operators.models.base import Model
from operators.models.ledger import Account
from operators.models.limits import Limiter
from operators.models.recording import RecordingModel

NOT_PROVIDERS = (
    "anthropic_attempts",
    "anthropic_batches",
    "attempts",
    "base",
    "bounded",
    "building",
    "child",
    "ledger",
    "limits",
    "local_child",
    "local_engine",
    "openai_answers",
    "over_http",
    "prices",
    "recording",
    "replaying",
    "server_child",
    "tier",
)
"""Modules of `operators.models` that a configuration cannot name."""

_COMMON = frozenset({"name", "ledger", "limiter", "max_tokens", "base_url"})
"""What every client takes and a configuration has keys for."""

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")

RECORD = "record"
"""An option that every provider has: the path of a cassette to write its answers to (`operators.models.recording`)."""

PATHS = frozenset({"cassette", "file", "folder", "prices", RECORD})
"""Options that are places on the machine where proposals are made."""


def providers() -> tuple[str, ...]:
    """What may stand at `models.N.provider`."""
    names = (info.name for info in pkgutil.iter_modules(operators.models.__path__))
    return tuple(sorted(name for name in names if name not in NOT_PROVIDERS))


def check_model(provider: str, options: Mapping[str, bool | int | float | str], where: str = "models") -> None:
    """Checks what can be checked without a key, so that a mistake is answered before a run begins.

    Args:
        provider: See `providers`.
        options: Further keyword arguments of the client's constructor.
        where: The key of the configuration that says it.

    Raises:
        ConfigError: Unknown provider, or an option that its client does not have or of a type it does not take.
    """
    if provider not in providers():
        raise ConfigError(f"{where}: provider", given=provider, allowed=providers())
    cls = client_of(provider)
    hints = typing.get_type_hints(cls.__init__)
    parameters = inspect.signature(cls).parameters
    allowed = [key for key in parameters if key not in _COMMON]
    for key, value in options.items():
        if key == RECORD and isinstance(value, str):
            continue
        if key not in allowed:
            raise ConfigError(f"{where}: options of {provider}", given=key, allowed=[*allowed, RECORD])
        if key.endswith("_env") and not (isinstance(value, str) and _VARIABLE.fullmatch(value)):
            # Not shown: whoever misunderstands it gives the key itself, and messages are kept.
            action = "it must be the name of an environment variable, in capitals, never the key itself"
            raise ConfigError(f"{where}: options.{key} of {provider}", action=action)
        if not _fits(value, hints[key]):
            raise ConfigError(f"{where}: options.{key} of {provider}", given=value, allowed=_shown(hints[key]))
    for key in allowed:
        if parameters[key].default is inspect.Parameter.empty and key not in options:
            raise ConfigError(f"{where}: options.{key} of {provider}", allowed=_shown(hints[key]), action="it must be given")


def build_model(
    provider: str,
    name: str,
    *,
    ledger: Account,
    limiter: Limiter | None = None,
    max_tokens: int = 16_000,
    base_url: str | None = None,
    options: Mapping[str, bool | int | float | str] | None = None,
) -> Model:
    """The client of one model.

    Args:
        provider: See `providers`.
        name: Model name as the endpoint knows it.
        ledger: Pays for its requests; share one among all models of a run.
        limiter: Of its endpoint; share one among all who ask it.
        max_tokens: Longest reply, tokens.
        base_url: Another endpoint than the provider's own.
        options: Further keyword arguments of the client's constructor.

    Raises:
        ConfigError: Unknown provider, an option that its client does not have, or a value that it refuses.
        InputError: The key is missing, or, under a dollar cap, the model has no known price or is too dear for one request.
    """
    check_model(provider, options or {})
    arguments: dict[str, Any] = {
        "ledger": ledger,
        "limiter": limiter,
        "max_tokens": max_tokens,
        "base_url": base_url,
        **(options or {}),
    }
    cassette = arguments.pop(RECORD, None)
    try:
        model = client_of(provider)(name, **arguments)
    except ValueError as error:
        raise ConfigError(f"models: {provider} {name}", action=str(error)) from None
    if ledger.cap is not None and model.least_dollars > ledger.cap:
        least = f"one request to {name} may cost ${model.least_dollars:.4f}: raise it, or lower the model's max_tokens"
        raise ConfigError("budget.dollars", given=ledger.cap, action=least)
    return model if cassette is None else RecordingModel(model, cassette)


def client_of(provider: str) -> type[Model]:
    """The class of a provider's client; its SDK is imported.

    Raises:
        ConfigError: The module has none of that name.
    """
    module = importlib.import_module(f"operators.models.{provider}")
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Model) and vars(value).get("provider") == provider:
            return value
    raise ConfigError("models: provider", given=provider, action=f"{module.__name__} has no model of that name")


def _choices(hint: Any) -> tuple[Any, ...]:
    """The members of a union without None, or the type alone."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return tuple(member for member in members if member is not type(None))


def _fits(value: object, hint: Any) -> bool:
    return any(
        value in typing.get_args(choice)
        if typing.get_origin(choice) is typing.Literal
        else isinstance(value, int | float if choice is float else choice) and isinstance(value, bool) == (choice is bool)
        for choice in _choices(hint)
    )


def _shown(hint: Any) -> list[str]:
    return [str(item) for choice in _choices(hint) for item in (typing.get_args(choice) or (choice.__name__,))]
