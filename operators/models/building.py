"""Builds the model that a configuration names; the provider's SDK is imported only then."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Mapping
from typing import Any

import operators.models
from evo.errors import ConfigError
from operators.models.base import Model
from operators.models.ledger import Ledger

NOT_PROVIDERS = ("attempts", "base", "building", "ledger", "prices", "replaying")
"""Modules of `operators.models` that a configuration cannot name."""

_COMMON = frozenset({"name", "ledger", "max_tokens", "base_url"})
"""What every client takes and a configuration has keys for."""


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
    cls = _client(provider)
    hints = typing.get_type_hints(cls.__init__)
    allowed = [key for key in inspect.signature(cls).parameters if key not in _COMMON]
    for key, value in options.items():
        if key not in allowed:
            raise ConfigError(f"{where}: options of {provider}", given=key, allowed=allowed)
        if not _fits(value, hints[key]):
            raise ConfigError(f"{where}: options.{key} of {provider}", given=value, allowed=_shown(hints[key]))


def build_model(
    provider: str,
    name: str,
    *,
    ledger: Ledger,
    max_tokens: int = 16_000,
    base_url: str | None = None,
    options: Mapping[str, bool | int | float | str] | None = None,
) -> Model:
    """The client of one model.

    Args:
        provider: See `providers`.
        name: Model name as the endpoint knows it.
        ledger: Pays for its requests; share one among all models of a process.
        max_tokens: Longest reply, tokens.
        base_url: Another endpoint than the provider's own.
        options: Further keyword arguments of the client's constructor.

    Raises:
        ConfigError: Unknown provider, an option that its client does not have, or a value that it refuses.
        InputError: The key is missing, or the model has no known price under a dollar cap.
    """
    check_model(provider, options or {})
    arguments: dict[str, Any] = {"ledger": ledger, "max_tokens": max_tokens, "base_url": base_url, **(options or {})}
    try:
        return _client(provider)(name, **arguments)
    except ValueError as error:
        raise ConfigError(f"models: {provider} {name}", action=str(error)) from None


def _client(provider: str) -> type[Model]:
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
