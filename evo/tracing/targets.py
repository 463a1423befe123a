"""Compilation targets by name, with the device facts that wrappers and models ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evo.errors import InputError


@dataclass(frozen=True)
class Target:
    """One GPU model that kernels can be traced and compiled for without having it.

    Sizes are bytes, rates are per second and are data-sheet figures: they serve modelled estimates, never measured ones.

    Attributes:
        key: ``backend:arch``.
        name: A representative device.
        warp_size: Threads of a warp.
        multiprocessors: SMs or CUs.
        max_shared_bytes: Shared memory one block may use.
        memory_bytes, l2_bytes: Device memory and last-level cache.
        bandwidth: Device memory bytes/s.
        clock_hz: Boost clock.
        fp32_flops: Plain fp32 operations/s.
        tensor_flops: Dense fp16 matrix operations/s.
        registers_per_sm, threads_per_sm, blocks_per_sm, shared_per_sm: Occupancy limits.
    """

    key: str
    name: str
    warp_size: int
    multiprocessors: int
    max_shared_bytes: int
    memory_bytes: int
    l2_bytes: int
    bandwidth: float
    clock_hz: float
    fp32_flops: float
    tensor_flops: float
    registers_per_sm: int = 65536
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32
    shared_per_sm: int = 0
    extra: Mapping[str, int] = field(default_factory=dict)

    @property
    def backend(self) -> str:
        """``cuda`` or ``hip``."""
        return self.key.partition(":")[0]

    @property
    def arch(self) -> int | str:
        """As Triton wants it: a number for CUDA, a name for HIP."""
        arch = self.key.partition(":")[2]
        return int(arch) if self.backend == "cuda" else arch

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability as torch reports it."""
        return (int(self.arch) // 10, int(self.arch) % 10) if self.backend == "cuda" else (9, 4)

    @property
    def gpu_target(self):  # type: ignore[no-untyped-def]
        """Triton's own `GPUTarget` (imported late: records of targets need no triton)."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget(self.backend, self.arch, self.warp_size)

    @property
    def properties(self) -> dict[str, int]:
        """What `driver.utils.get_device_properties` answers."""
        return {
            "max_shared_mem": self.max_shared_bytes,
            "multiprocessor_count": self.multiprocessors,
            "warpSize": self.warp_size,
            "max_num_regs": self.registers_per_sm,
            "sm_clock_rate": int(self.clock_hz / 1000),
            "mem_clock_rate": int(self.bandwidth / 1e6),
            "mem_bus_width": 8,
            "max_threads_per_sm": self.threads_per_sm,
        }


TARGETS: Mapping[str, Target] = {
    target.key: target
    for target in (
        Target("cuda:80", "NVIDIA A100-SXM4-80GB", 32, 108, 166_912, 80 << 30, 40 << 20, 2.04e12, 1.41e9, 19.5e12, 312e12, shared_per_sm=167_936),
        Target("cuda:89", "NVIDIA L40S", 32, 142, 101_376, 48 << 30, 96 << 20, 0.864e12, 2.52e9, 91.6e12, 362e12, threads_per_sm=1536, blocks_per_sm=24, shared_per_sm=102_400),
        Target("cuda:90", "NVIDIA H200", 32, 132, 232_448, 141 << 30, 60 << 20, 4.8e12, 1.98e9, 67e12, 989e12, shared_per_sm=233_472),
        Target("cuda:100", "NVIDIA B200", 32, 148, 232_448, 180 << 30, 126 << 20, 8.0e12, 1.97e9, 75e12, 2250e12, shared_per_sm=233_472),
        Target("hip:gfx942", "AMD Instinct MI300X", 64, 304, 65_536, 192 << 30, 256 << 20, 5.3e12, 2.1e9, 163e12, 1307e12, registers_per_sm=131_072, shared_per_sm=65_536),
    )
}  # fmt: skip
"""Sources: vendors' data sheets and tuning guides (A100, L40S, H200, B200, MI300X)."""


def target_named(key: str) -> Target:
    """The target of that name.

    Raises:
        InputError: Unknown.
    """
    if key not in TARGETS:
        raise InputError("target", given=key, allowed=TARGETS)
    return TARGETS[key]
