"""What a model's tokens cost: a dated table in TOML, and the arithmetic from tokens to dollars."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from evo.errors import InputError
from evo.records import Usage
from operators.models.ledger import Account

PRICES = Path(__file__).with_name("prices.toml")

_MILLION = 1_000_000
_SNAPSHOT = re.compile(r"-\d{8}$")
"""The date with which a provider pins a snapshot of a model; it does not change the price."""


@dataclass(frozen=True)
class Price:
    """Dollars per million tokens.

    Attributes:
        input, output: Fresh input, and output with thinking.
        write_5m, write_1h: Input put into the prompt cache for five minutes or an hour.
        read: Input found in the cache.
        long_from, long_factor: Every token of a request with more input tokens than `long_from` costs that many times as much.
    """

    input: float
    output: float
    write_5m: float
    write_1h: float
    read: float
    long_from: int = 2**62
    long_factor: float = 1.0

    def __post_init__(self) -> None:
        rates = (self.input, self.output, self.write_5m, self.write_1h, self.read)
        # Neither infinity nor NaN, which TOML can say too: no cap is below NaN.
        if any(
            not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 <= rate < math.inf
            for rate in (*rates, self.long_from)
        ):
            raise ValueError(f"prices are finite numbers and not negative, given {rates}")
        if not 1 <= self.long_factor < math.inf:
            raise ValueError(f"long_factor {self.long_factor} must be at least 1")

    def dollars(self, *, fresh: int = 0, output: int = 0, write_5m: int = 0, write_1h: int = 0, read: int = 0) -> float:
        """The bill for so many tokens of one request."""
        sum_ = fresh * self.input + output * self.output + write_5m * self.write_5m + write_1h * self.write_1h + read * self.read
        long = fresh + write_5m + write_1h + read > self.long_from
        return sum_ * (self.long_factor if long else 1.0) / _MILLION

    def of(self, usage: Usage, hour: int = 0) -> float:
        """The bill for the tokens of one request, so many of them put into the cache for an hour."""
        return self.dollars(
            fresh=usage.input_tokens,
            output=usage.output_tokens,
            write_5m=max(usage.cache_write_tokens - hour, 0),
            write_1h=hour,
            read=usage.cache_read_tokens,
        )

    def bound(self, input_tokens: int, max_tokens: int) -> float:
        """The most that a request can cost, whatever part of its input is cached."""
        dearest = max(self.input, self.write_5m, self.write_1h, self.read)
        factor = self.long_factor if input_tokens > self.long_from else 1.0
        return (input_tokens * dearest + max_tokens * self.output) * factor / _MILLION


@dataclass(frozen=True)
class PriceTable:
    """Prices by model name, and the day they were read."""

    dated: str
    models: Mapping[str, Price]

    def find(self, model: str) -> Price | None:
        """The price of a model, a pinned snapshot (``…-20260901``) being priced as its model."""
        return self.models.get(model) or self.models.get(_SNAPSHOT.sub("", model))


def read_prices(own: Path | str | None = None) -> PriceTable:
    """Our table, with the entries of a user's file before it.

    Raises:
        InputError: The user's file is missing or malformed.
    """
    table = _read(PRICES)
    if own is None:
        return table
    mine = _read(Path(own))
    return PriceTable(f"{mine.dated} ({own}), {table.dated}", {**table.models, **mine.models})


def known_price(model: str, account: Account, own: str | None) -> Price | None:
    """The price of a model; None where it is unknown and need not be known, for there is no cap in dollars.

    Raises:
        InputError: It is unknown under a cap, or the user's file is missing or malformed.
    """
    table = read_prices(own)
    price = table.find(model)
    if price is None and account.cap is not None:
        action = f"no price is known (table of {table.dated}); name a price file in its option `prices`, set no budget.dollars"
        action += ", or, for a server of your own behind provider openai, set its option `free: true`"
        raise InputError(f"model {model}", allowed=sorted(table.models), action=action)
    return price


def _read(path: Path) -> PriceTable:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"prices {path}", action=f"cannot be read: {error}") from None
    models = document.get("models")
    if not isinstance(models, dict) or not isinstance(document.get("dated"), str):
        raise InputError(f"prices {path}", action=f"it must have `dated` and `[models.NAME]` tables, like {PRICES}")
    return PriceTable(document["dated"], {name: _price(path, name, entry) for name, entry in models.items()})


def _price(path: Path, name: str, entry: Any) -> Price:
    allowed = [field.name for field in fields(Price)]
    where = f"prices {path}: models.{name}"
    if not isinstance(entry, dict) or not set(entry) <= set(allowed):
        raise InputError(where, given=entry, allowed=allowed)
    try:
        return Price(**entry)
    except (TypeError, ValueError) as error:
        raise InputError(where, given=entry, allowed=allowed, action=str(error)) from None
