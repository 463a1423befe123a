"""What a GPU's evaluator starts, in which order, and that nothing of it is left where the GPU cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evo.errors import DeviceError
from evo.evaluation import building, replay
from evo.evaluation.settings import EvaluationSettings


class Part:
    """Notes when it is started and closed."""

    capability, device = "cuda:90", "Paper GPU"

    def __init__(self, name: str, noted: list[str]) -> None:
        self._name, self._noted = name, noted
        noted.append(name)

    def start(self) -> None:
        self._noted.append(f"{self._name} starts")

    def close(self) -> None:
        self._noted.append(f"{self._name} closed")


@pytest.mark.parametrize(("target", "first"), [("cuda:90", "bench"), ("auto", "tier")])
def test_a_known_target_is_compiled_for_while_the_device_starts(target: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    part: Callable[[str], Callable[..., Any]] = lambda name: lambda *arguments, **options: Part(name, noted)  # noqa: E731
    monkeypatch.setattr(replay, "ReplayTier", part("tier"))
    monkeypatch.setattr(building, "Workbench", part("bench"))
    monkeypatch.setattr(building, "LadderEvaluator", lambda *arguments, **options: None)
    building.build_evaluator({}, EvaluationSettings(target=target), "gpu")
    assert noted[0] == first
    assert sorted(noted) == ["bench", "bench starts", "tier"]
    noted.clear()
    with pytest.raises(DeviceError, match="cuda:80"):
        building.build_evaluator({}, EvaluationSettings(target="cuda:80"), "gpu")
    assert {"bench closed", "tier closed"} <= set(noted)
