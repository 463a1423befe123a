"""A suite's kernel as a reference on a GPU: which configuration a judge takes, and what a comparison calls."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton import Config
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources

from evo.suites import triton_reference
from evo.suites.triton_reference import TritonReference

MODULE = """
TUNER = None

def entry(x):
    TUNER(x)
    return x
"""


class OnDevice(torch.Tensor):
    """Claims to be on a GPU."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


def autotuned(ran: list[int], largest: int) -> Callable[[torch.Tensor], Any]:
    """An autotuned kernel that adds one to its argument, of which configurations beyond the `largest` do not fit."""

    def launch(x: torch.Tensor, **options: Any) -> None:
        if options["BLOCK"] > largest:
            raise OutOfResources(options["BLOCK"], largest, "shared memory")
        ran.append(options["BLOCK"])
        x.add_(1)

    configs = [Config({"BLOCK": size}) for size in (256, 128, 64)]
    tuner: Any = SimpleNamespace(
        arg_names=["x"], prune_configs=lambda given: configs, fn=SimpleNamespace(run=launch), base_fn=launch, nargs=None
    )
    return lambda x: Autotuner.run(tuner, x)


def test_a_judge_takes_the_first_configuration_that_fits_and_updates_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's own choice would run all of them on the arguments, and each run of a kernel that updates them counts."""
    reference, ran = TritonReference(MODULE, "entry", (0,), frozenset()), list[int]()
    reference.loaded().__globals__["TUNER"] = autotuned(ran, 128)
    own = Autotuner.run
    x = torch.zeros(3).as_subclass(OnDevice)
    assert torch.equal(reference(x).as_subclass(torch.Tensor), torch.ones(3))
    assert ran == [128]
    assert Autotuner.run is own, "a comparison tunes as users do"
    reference.loaded().__globals__["TUNER"] = autotuned(ran, 8)
    with pytest.raises(OutOfResources):
        reference(x)


def test_what_a_comparison_calls_is_the_module_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for the device at every call would be time of the suite's side alone."""
    monkeypatch.setattr(triton_reference, "_tensors", None)
    reference = TritonReference("def entry(x):\n    return x + 1\n", "entry", (), frozenset())
    assert reference.loaded()(1) == 2
    assert reference.loaded() is reference.loaded()
