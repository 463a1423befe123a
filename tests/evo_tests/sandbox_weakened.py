"""Runs the probes where a kernel or container refuses some layers: its argument says which, in JSON."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import json
import os
import platform
import struct
import sys

COLUMN = {"x86_64": 0, "aarch64": 1}[platform.machine()]
LAYERS = {
    "namespaces": [(272, 97), (308, 268), (165, 40)],
    "mounts": [(165, 40)],
    "landlock": [(444, 444)],
    "seccomp": [(317, 277)],
}
PRCTL = (157, 167)
KEPT_BY_CONTAINERS = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
"""Capabilities of Docker's default set."""


def refuse(layers: list[str]) -> None:
    """These layers' system calls fail with EPERM from now on, as in a container."""
    code = [(0x20, 0, 0, 0)]
    for layer in layers:
        for numbers in LAYERS[layer]:
            code += [(0x15, 0, 1, numbers[COLUMN]), (0x06, 0, 0, 0x50000 | errno.EPERM)]
    if "seccomp" in layers:  # also by prctl, whose first argument lies at 16
        code += [(0x15, 0, 3, PRCTL[COLUMN]), (0x20, 0, 0, 16), (0x15, 0, 1, 22), (0x06, 0, 0, 0x50000 | errno.EPERM)]
    code += [(0x06, 0, 0, 0x7FFF0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)
    if libc.prctl(22, 2, ctypes.c_long(ctypes.addressof(header)), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def main() -> None:
    wanted = json.loads(sys.argv[1])
    if not wanted.get("again"):
        if wanted.get("container"):
            for capability in range(41):
                if capability not in KEPT_BY_CONTAINERS:
                    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
        if wanted["refuse"]:
            refuse(wanted["refuse"])
        if wanted.get("uid"):
            os.setgroups([])
            os.setresgid(wanted["uid"], wanted["uid"], wanted["uid"])
            os.setresuid(wanted["uid"], wanted["uid"], wanted["uid"])
        # A program's start makes all that count, as if it had been so since the login.
        os.execv(sys.executable, [sys.executable, __file__, json.dumps({**wanted, "again": True})])
    from evo.tracing.probes import run_probes
    from evo.tracing.sandbox import ForkServer, Limits, abilities

    results = [dataclasses.asdict(result) for result in run_probes(gpu=wanted.get("gpu", False))]
    server = ForkServer("test", Limits())
    mounts = server.call("tests.evo_tests.sandbox_children:writable_mounts", {}, deadline_s=30)
    server.close()
    json.dump({"abilities": abilities(), "results": results, "mounts": mounts}, sys.stdout)


main()
