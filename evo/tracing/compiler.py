"""Compiles recorded kernels in disposable processes and keeps what each needs: binary, launch metadata, resources."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evo.errors import WorkerDied
from evo.records import Failure, Record, Stage, Status
from evo.tracing.plan import Kernel, LaunchPlan
from evo.tracing.sandbox import ForkServer, Limits
from evo.tracing.targets import target_named
from evo.tracing.zygote import Zygote

MAX_BYTES_PER_THREAD = 2047
"""255 registers of 4 bytes are all a thread has. A single tensor of twice that spills whatever the compiler does, and takes it minutes."""
_ENVIRONMENT = {"TRITON_DISABLE_LINE_INFO": "1"}
"""The TTIR of plans has no locations; lines of the TTIR itself would make a binary three times as large, and its bytes depend on a path."""
_TENSOR = re.compile(r"tensor<((?:\d{1,12}x)+)(f|bf|i|u)(\d{1,4})\b")


@dataclass(frozen=True)
class Resources(Record):
    """What one kernel occupies.

    Attributes:
        registers: Per thread.
        spill_bytes: Local memory per thread.
        shared_bytes: Static and dynamic, per block.
        instructions: Static count by opcode (SASS or AMDGCN); empty where it was not asked for.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int
    instructions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Binary:
    """A compiled kernel: cubin or hsaco, with Triton's launch metadata and the resources read from it."""

    kernel_hash: str
    data: bytes
    metadata: Mapping[str, Any]
    resources: Resources


def oversized(kernel: Kernel, warp_size: int) -> Failure | None:
    """A verdict that needs no compiler."""
    held = largest_bytes_per_thread(kernel, warp_size)
    if held <= MAX_BYTES_PER_THREAD:
        return None
    text = f"{kernel.name} holds a tensor of {held} bytes per thread, twice all registers; use smaller tiles or more warps"
    return Failure(Status.OUT_OF_RESOURCES, Stage.COMPILE, text, "out_of_resources:registers")


def largest_bytes_per_thread(kernel: Kernel, warp_size: int) -> int:
    """Bytes per thread of the largest number tensor in a kernel's TTIR, were it spread evenly over the block."""
    return largest_bytes(kernel) // (int(kernel.options.get("num_warps", 4)) * warp_size)


def largest_bytes(kernel: Kernel) -> int:
    """Bytes of the largest number tensor in a kernel's TTIR."""
    largest = 0
    for shape, _, bits in set(_TENSOR.findall(kernel.ttir)):
        largest = max(largest, math.prod(map(int, shape.rstrip("x").split("x"))) * max(int(bits), 8) // 8)
    return largest


class Compiler:
    """Owns one compiler fork server for a target. Not thread-safe.

    Args:
        target: Key of `evo.tracing.targets.TARGETS`.
        deadline_s: Wall seconds per kernel.
        sass: Whether instructions are counted.
        zygote: Forks its server, see `ForkServer`.
    """

    def __init__(self, target: str, *, deadline_s: float = 120.0, sass: bool = False, zygote: Zygote | None = None) -> None:
        self.target = target_named(target)
        self._deadline_s = deadline_s
        self._sass = sass
        limits = Limits(cpu_s=int(deadline_s) + 1)
        preload = ("evo.tracing.compile_child", "triton.compiler")
        self._server = ForkServer("compile", limits, preload=preload, environment=_ENVIRONMENT, zygote=zygote)

    def start(self) -> None:
        """Starts the fork server ahead of need."""
        self._server.start()

    def compile_plan(self, plan: LaunchPlan) -> tuple[Binary, ...] | Failure:
        """Binaries of all kernels of a plan, or the first failure. Never raises for a bad kernel."""
        binaries = []
        for kernel in plan.kernels:
            binary = self.compile(kernel)
            if isinstance(binary, Failure):
                return binary
            binaries.append(binary)
        return tuple(binaries)

    def compile(self, kernel: Kernel) -> Binary | Failure:
        """Compiles one kernel. Never raises for a bad one."""
        hopeless = oversized(kernel, self.target.warp_size)
        if hopeless is not None:
            return hopeless
        request = {"ttir": kernel.ttir, "options": dict(kernel.options), "target": self.target.key, "sass": self._sass}
        try:
            answer = self._server.call("evo.tracing.compile_child:compile_kernel", request, deadline_s=self._deadline_s)
        except WorkerDied as error:
            status = Status.TIMEOUT if error.reason == "deadline" else Status.COMPILE_ERROR
            text = f"compiling {kernel.name} ended the compiler: {error.reason}"
            return Failure(status, Stage.COMPILE, text, f"{status.value}:{error.reason}")
        try:
            if "failure" in answer:
                return Failure.from_json(answer["failure"])
            data = base64.b64decode(answer["binary"], validate=True)
            return Binary(kernel.kernel_hash, data, dict(answer["metadata"]), Resources.from_json(answer["resources"]))
        except (KeyError, TypeError, ValueError) as error:
            text = f"the compiler's answer is not valid: {type(error).__name__}: {error}"
            return Failure(Status.COMPILE_ERROR, Stage.COMPILE, text, "compile_error:answer")

    def close(self) -> None:
        """Ends the fork server."""
        self._server.close()
