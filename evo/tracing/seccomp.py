"""A seccomp filter: system calls that neither Python, torch, Triton, a compiler nor CUDA needs, and that have been ways out of sandboxes.

They fail with EPERM. What is left is refused by arguments: sockets other than unix ones, and new namespaces.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import platform
import struct

from evo.tracing.kernel import prctl, syscall

_REFUSED = {
    # other processes' memory and descriptors
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "setns": (308, 268),
    "unshare": (272, 97),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # large and often broken parts of the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "fanotify_init": (300, 262),
    "memfd_secret": (447, 447),
    "personality": (135, 92),
    "lookup_dcookie": (212, 18),
    # what a call could leave behind for the next one
    "shmget": (29, 194),
    "shmctl": (31, 195),
    "shmat": (30, 196),
    "semget": (64, 190),
    "semctl": (66, 191),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgctl": (71, 187),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # the machine's
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
}
"""Names to numbers on x86_64 and aarch64."""

_UNBOUNDED = {"memfd_create": (319, 279)}
"""Memory that is neither a process' nor a folder's. CUDA may share memory through it."""

_ARCHITECTURES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
_SECCOMP = (317, 277)
_CLONE, _CLONE3, _SOCKET, _SOCKETPAIR = (56, 220), (435, 435), (41, 198), (53, 199)
_CONNECT = (42, 203)
_X32 = 0x4000_0000
_NEW_NAMESPACES = 0x7E02_0000
_AF_UNIX = 1

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE, _MISSING = 0x7FFF_0000, 0x0005_0000 | errno.EPERM, 0x0005_0000 | errno.ENOSYS
_ABSENT = 0x0005_0000 | errno.ENOENT
_FLAG_ALL_THREADS = 1
_SET_MODE_FILTER, _FLAG_SPECULATION_ALLOWED, _PR_SET_SECCOMP, _MODE_FILTER = 1, 4, 22, 2


def offered() -> bool:
    """Whether this machine's kind of processor is known here."""
    return platform.machine() in _ARCHITECTURES


def install(*, gpu: bool) -> bool:
    """Puts this process, which must have no new privileges, under the filter for good; tells whether it could.

    Args:
        gpu: Allow what CUDA needs besides: unix sockets and files in memory.
    """
    if not offered():
        return False
    return _filtered(program(platform.machine(), gpu=gpu), _FLAG_SPECULATION_ALLOWED)


def refuse_connections() -> bool:
    """From now on no thread of this process, nor what they start, can connect a socket; tells whether that could be brought about.

    For processes that may have unix sockets, before untrusted code runs there: file systems' rules, Landlock's included, do not keep it
    from sockets of services of its own user, such as those of Ray in ``/tmp/ray``. Who looks for a service finds none (ENOENT).
    """
    if not offered():
        return False
    column, architecture = _ARCHITECTURES[platform.machine()]
    out = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _MISSING), (_LOAD, 0, 0, 0)]
    out += [(_EQUAL, 0, 1, _CONNECT[column]), (_RETURN, 0, 0, _ABSENT), (_RETURN, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in out)
    return _filtered(code, _FLAG_SPECULATION_ALLOWED | _FLAG_ALL_THREADS)


def _filtered(code: bytes, flags: int) -> bool:
    held = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held)))
    column = _ARCHITECTURES[platform.machine()][0]
    try:
        # Without this flag, kernels before 5.16 slow down all of the process against Spectre v4, which cannot cross processes.
        return syscall(_SECCOMP[column], _SET_MODE_FILTER, flags, header) == 0
    except OSError:
        if flags & _FLAG_ALL_THREADS:
            return False
        try:
            prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(header))
        except OSError:
            return False
    return True


@functools.cache
def program(machine: str, *, gpu: bool) -> bytes:
    """The filter in classic BPF (see seccomp(2)); each instruction is a code, two jump distances and a number."""
    column, architecture = _ARCHITECTURES[machine]
    refused = _REFUSED if gpu else {**_REFUSED, **_UNBOUNDED}
    numbers = [entry[column] for entry in refused.values()]
    out = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _MISSING), (_LOAD, 0, 0, 0)]
    if machine == "x86_64":
        out += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _MISSING)]
    for number in numbers:
        if number is not None:
            out += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    # The flags of clone3 lie in memory that a filter cannot read: the C library falls back to clone.
    out += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _MISSING)]
    out += [(_EQUAL, 0, 4, _CLONE[column]), (_LOAD, 0, 0, 16), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), (_RETURN, 0, 0, _REFUSE)]
    out += [(_RETURN, 0, 0, _ALLOW)]
    unix_only = [(_LOAD, 0, 0, 16), (_EQUAL, 1, 0, _AF_UNIX), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    out += [(_EQUAL, 0, 4, _SOCKETPAIR[column]), *unix_only]
    out += [(_EQUAL, 0, 4, _SOCKET[column]), *unix_only] if gpu else [(_EQUAL, 0, 1, _SOCKET[column]), (_RETURN, 0, 0, _REFUSE)]
    out += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in out)
