"""What can be said of a command's arguments at once, before torch, Triton or Ray are imported for it."""

from __future__ import annotations

from pathlib import Path

from evo.errors import InputError
from evo.tasks.names import check_reference
from evo.tracing.targets import target_named


def check_given(*, task: str | None = None, kernel: Path | None = None, target: str | None = None) -> None:
    """Refuses what no command can use; None for what a command does not take.

    Raises:
        InputError: There is no such task, kernel file or target.
    """
    if target is not None:
        target_named(target)
    if task is not None:
        check_reference(task, where="--task")
    if kernel is not None:
        read_kernel(kernel)


def read_kernel(path: Path) -> str:
    """The source of a kernel module.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(str(path), given="no such file", action="give the path of a kernel module") from None
    except IsADirectoryError:
        raise InputError(str(path), given="a folder", allowed="the path of a kernel module") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), action=f"cannot be read: {error}") from None
