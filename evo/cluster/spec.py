"""What actors are told about a run, and what the engine's actor answers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from evo.config import RunConfig
from population_store.base import RunHeader

T = TypeVar("T")


@dataclass(frozen=True)
class RunSpec:
    """One run, as every actor sees it.

    Attributes:
        config: The configuration, with `target` resolved.
        store: Absolute path or URL of the population store.
        header: Creates the store; None resumes an existing one.
        device: What evaluators are: ``gpu``, or ``cpu:TARGET``.
    """

    config: RunConfig
    store: str
    header: RunHeader | None
    device: str


@dataclass(frozen=True)
class Answer(Generic[T]):
    """Work for a worker. An empty answer means: ask again; `done` means: there will be no more, and `refused` why, for this worker."""

    items: tuple[T, ...] = ()
    done: bool = False
    refused: str = ""
