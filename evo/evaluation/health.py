"""Proves a device well after a fault: known answers from all its multiprocessors, patterns kept by its memory, and what its driver says.

The known answers are small integers in float16, so tensor cores must give them exactly; there are more tiles than multiprocessors.
The memory patterns are those that show stuck and coupled cells: all bits alternating, their complement, and each word's own number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

PATTERN_BYTES = 64 << 20
PRODUCT = 2048
DEPTH = 512

HARD_REASONS: Mapping[int, str] = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of NVML's clock event reasons under which timing means nothing. The power cap (0x4) is not among them: under load it is how
recent GPUs run, for both sides of a pair alike."""


@dataclass(frozen=True)
class Reading:
    """What the driver says at one moment; empty and zero where it says nothing.

    Attributes:
        throttled: Reasons of `HARD_REASONS` that hold.
        sm_mhz: Clock.
        celsius: Temperature.
        errors: Uncorrected ECC errors since the driver was loaded, and rows of memory that could not be remapped.
    """

    throttled: tuple[str, ...] = ()
    sm_mhz: int = 0
    celsius: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)


class Driver:
    """Reads NVML for one device, by its UUID; without nvidia-ml-py, or without NVML, every reading is empty."""

    def __init__(self, uuid: str) -> None:
        self._nvml = _nvml()
        self._handle: Any = None
        if self._nvml is not None and uuid:
            with self._quietly():
                self._nvml.nvmlInit()
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)

    @property
    def available(self) -> bool:
        """Whether anything is read."""
        return self._handle is not None

    def throttled(self) -> tuple[str, ...]:
        """Reasons of `HARD_REASONS` that hold now."""
        if self._handle is None:
            return ()
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return tuple(text for bit, text in HARD_REASONS.items() if int(bits or 0) & bit)

    def read(self) -> Reading:
        """Everything."""
        nvml = self._nvml
        if self._handle is None or nvml is None:
            return Reading()
        errors = {}
        uncorrected = self._ask_with(
            "nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
        if uncorrected:
            errors["uncorrected ECC errors"] = int(uncorrected)
        remapped = self._ask("nvmlDeviceGetRemappedRows")
        if remapped and remapped[3]:
            errors["failed row remappings"] = 1
        return Reading(
            self.throttled(),
            int(self._ask_with("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM) or 0),
            int(self._ask_with("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU) or 0),
            errors,
        )

    def _ask(self, *names: str) -> Any:
        for name in names:
            if hasattr(self._nvml, name):
                return self._ask_with(name)
        return None

    def _ask_with(self, name: str, *arguments: Any) -> Any:
        with self._quietly():
            return getattr(self._nvml, name)(self._handle, *arguments)
        return None

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """What one kind of device does not report (ECC, remapping) is left out."""
        assert self._nvml is not None
        with contextlib.suppress(self._nvml.NVMLError):
            yield


def _nvml() -> ModuleType | None:
    try:
        import pynvml
    except ImportError:
        return None
    module: ModuleType = pynvml
    return module


def ailment(device: torch.device, nbytes: int = PATTERN_BYTES) -> str:
    """What is wrong with a device, in a few words; empty where it is well. Raises what the device raises."""
    return _wrong_products(device) or _wrong_memory(device, nbytes)


def _wrong_products(device: torch.device) -> str:
    rows = torch.arange(PRODUCT, device=device)
    # Row i holds ones up to depth i modulo DEPTH, so the known sums differ between neighbours and fit float16 exactly.
    left = (torch.arange(DEPTH, device=device)[None, :] < (rows % DEPTH)[:, None]).to(torch.float16)
    found = left @ torch.ones(DEPTH, PRODUCT, dtype=torch.float16, device=device)
    wrong = int((found != (rows % DEPTH)[:, None]).sum().item())
    return f"{wrong} of {PRODUCT * PRODUCT} products are wrong" if wrong else ""


def _wrong_memory(device: torch.device, nbytes: int) -> str:
    words = torch.empty(nbytes // 4, dtype=torch.int32, device=device)
    numbers = torch.arange(words.numel(), dtype=torch.int32, device=device)
    for name, pattern in (("0x55", 0x55555555), ("0xAA", -0x55555556), ("numbered", numbers)):
        words.copy_(pattern) if isinstance(pattern, torch.Tensor) else words.fill_(pattern)
        wrong = int((words != pattern).sum().item())
        if wrong:
            return f"{wrong} of {words.numel()} words of memory do not keep the pattern {name}"
    return ""


def uuid_of(properties: Any) -> str:
    """The UUID of a device as NVML spells it; empty where torch does not know it."""
    uuid = str(getattr(properties, "uuid", ""))
    return uuid if not uuid or uuid.startswith("GPU-") else f"GPU-{uuid}"
