"""The health check passes on a well device and notices a wrong product and a bit that does not stay; the driver's words are optional."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from evo.evaluation.health import HARD_REASONS, Driver, Reading, ailment, uuid_of

CPU = torch.device("cpu")
NBYTES = 1 << 16


class Broken(TorchDispatchMode):
    """A device that spoils one element of what an operator leaves."""

    def __init__(self, name: str, nth: int = 1) -> None:
        super().__init__()
        self._name, self._left = name, nth

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.name().startswith(self._name):
            self._left -= 1
            if not self._left:
                result.view(-1)[1234].add_(1)
        return result


def test_a_well_device_passes() -> None:
    assert ailment(CPU, NBYTES) == ""


@pytest.mark.parametrize(
    ("name", "nth", "said"),
    [
        ("aten::mm", 1, "1 of 4194304 products are wrong"),
        ("aten::fill_", 1, "1 of 16384 words of memory do not keep the pattern 0x55"),
        ("aten::fill_", 2, "1 of 16384 words of memory do not keep the pattern 0xAA"),
    ],
)
def test_one_wrong_element_is_noticed(name: str, nth: int, said: str) -> None:
    with Broken(name, nth):
        assert ailment(CPU, NBYTES) == said


def test_without_a_driver_nothing_is_read_and_nothing_fails() -> None:
    driver = Driver("")
    assert (driver.available, driver.read(), driver.throttled()) == (False, Reading(), ())


def test_the_power_cap_is_no_reason_to_discard_pairs() -> None:
    assert 0x4 not in HARD_REASONS


def test_uuids_are_spelt_as_the_driver_spells_them() -> None:
    class Properties:
        uuid = "5a1d"

    assert uuid_of(Properties()) == "GPU-5a1d"
    assert uuid_of(object()) == ""
