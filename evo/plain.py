"""Records as plain data: the JSON round trip that every stored record has, and identity by content."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self


def content_id(*parts: str) -> str:
    """First 24 hex digits of the SHA-256 over length-prefixed UTF-8 parts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:24]


class Record:
    """Mixin: JSON round trip of a frozen dataclass whose nested records declare `from_json` themselves."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values only; enums become their values, tuples lists."""
        assert dataclasses.is_dataclass(self)
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`; an unknown key raises TypeError."""
        return cls(**data)


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
