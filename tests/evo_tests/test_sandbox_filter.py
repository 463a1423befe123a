"""The filter of system calls: what it refuses on each processor, and that what compilers, threads and sockets in pairs need is left."""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator

import pytest

from evo.tracing.sandbox import ForkServer, Limits
from evo.tracing.seccomp import _ARCHITECTURES, _REFUSED, _UNBOUNDED, offered, program

ALLOW, EPERM, ENOSYS = 0x7FFF_0000, 0x5_0000 | errno.EPERM, 0x5_0000 | errno.ENOSYS
CLONE, CLONE3, SOCKET, SOCKETPAIR = (56, 220), (435, 435), (41, 198), (53, 199)


def verdict(code: bytes, architecture: int, number: int, argument: int = 0) -> int:
    """What the kernel would do: a few lines of classic BPF."""
    words = {0: number, 4: architecture, 16: argument & 0xFFFF_FFFF}
    lines = list(struct.iter_unpack("HBBI", code))
    at = value = 0
    while True:
        operation, yes, no, constant = lines[at]
        at += 1
        if operation == 0x06:
            return int(constant)
        if operation == 0x20:
            value = words[constant]
        else:
            holds = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}[operation]
            at += yes if holds else no


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("gpu", [False, True])
def test_what_each_call_meets(machine: str, gpu: bool) -> None:
    column, architecture = _ARCHITECTURES[machine]
    code = program(machine, gpu=gpu)
    refused = {numbers[column] for numbers in _REFUSED.values()} - {None}
    unbounded = {numbers[column] for numbers in _UNBOUNDED.values()}
    special = {numbers[column] for numbers in (CLONE, CLONE3, SOCKET, SOCKETPAIR)}
    assert not refused & special
    for number in range(600):
        if number in special:
            continue
        expected = EPERM if number in refused or (number in unbounded and not gpu) else ALLOW
        assert verdict(code, architecture, number) == expected, number
    assert verdict(code, architecture, CLONE3[column]) == ENOSYS
    assert verdict(code, architecture, CLONE[column], 0x0110_0000 | 17) == ALLOW
    for flag in (0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000):
        assert verdict(code, architecture, CLONE[column], flag | 17) == EPERM
    for family in (2, 10, 16, 17):
        assert verdict(code, architecture, SOCKET[column], family) == EPERM
        assert verdict(code, architecture, SOCKETPAIR[column], family) == EPERM
    assert verdict(code, architecture, SOCKETPAIR[column], 1) == ALLOW
    assert verdict(code, architecture, SOCKET[column], 1) == (ALLOW if gpu else EPERM)
    assert verdict(code, 0x4000_0003, 1) == ENOSYS  # calls of 32-bit programs have other numbers
    if machine == "x86_64":
        assert verdict(code, architecture, 0x4000_0000 | 101) == ENOSYS  # as have those of x32


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer("filter", Limits(memory_bytes=1 << 30, cpu_s=20))
    yield server
    server.close()


@pytest.mark.skipif(not offered(), reason="another processor")
def test_the_kernel_refuses_them(server: ForkServer) -> None:
    column = _ARCHITECTURES[platform.machine()][0]
    numbers = [entry[column] for entry in {**_REFUSED, **_UNBOUNDED}.values() if entry[column] is not None]
    answer = server.call("tests.evo_tests.sandbox_children:system_calls", {"numbers": numbers}, deadline_s=20)
    assert answer == {str(number): errno.EPERM for number in numbers}


@pytest.mark.parametrize("gpu", [False, True])
def test_which_sockets_there_are(gpu: bool) -> None:
    server = ForkServer("filter", Limits(memory_bytes=1 << 30, cpu_s=20), gpu=gpu)
    try:
        answer = server.call("tests.evo_tests.sandbox_children:sockets", {}, deadline_s=20)
    finally:
        server.close()
    refused = dict.fromkeys(("tcp", "udp", "netlink"), "PermissionError")
    assert answer == {**refused, "unix": "" if gpu else "PermissionError"}


def test_threads_and_a_c_compiler_work(server: ForkServer) -> None:
    answer = server.call("tests.evo_tests.sandbox_children:threads_and_tools", {}, deadline_s=20)
    assert answer == {"doubled": [0, 2, 4, 6, 8, 10, 12, 14], "four": 4}
