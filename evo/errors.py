"""The one tree of exceptions; each says what was given, what is allowed and what to do.

    TritonEvolveError
    ├── InputError                  the user can mend it: one line, exit status 2, never a traceback
    │   ├── ConfigError             a key or value of a YAML file
    │   ├── TaskError               a task file, its reference or its starting kernels
    │   │   └── TaskErrors          several of them
    │   ├── StoreError              a population store
    │   │   ├── StoreMissingError   there is none
    │   │   ├── StoreInUseError     another run owns it
    │   │   ├── StoreVersionError   written by a newer schema, or not one of ours
    │   │   └── StoreFullError      the disk is full
    │   └── BundleError             a part of a population store that was carried here from another machine
    ├── DeviceError                 no such device, or it failed its health check
    │   ├── BadDeviceError          it failed its health check twice: it is not to be used again
    │   └── OtherDeviceError        it works, but is of another model than the one that the run optimises for
    ├── PlanError                   a launch plan that is malformed or hostile (becomes an Evaluation)
    ├── ModelError                  a language-model endpoint (a failed proposal)
    │   └── SpendLimitError         ends the run: no money is left
    ├── SandboxError                a sandbox cannot be started on this machine
    └── WorkerDied                  a child process ended, hung or overran a limit
        ├── WorkerNotReady          it never came to work, so no work is to blame
        └── WorkerOutOfMemory       its device had no memory left

A bad kernel is none of these: it is an `evo.records.Evaluation` with a failure status.
"""

from __future__ import annotations

from collections.abc import Iterable


class TritonEvolveError(Exception):
    """Root of every exception raised on purpose by this project."""


class InputError(TritonEvolveError):
    """Something a user gave cannot be used.

    Args:
        where: File (and key) that is wrong, e.g. ``configs/evolve.yaml: search.islands``.
        given: What stood there.
        allowed: What may stand there.
        action: What to do next.
    """

    def __init__(self, where: str, *, given: object = None, allowed: object = None, action: str = "") -> None:
        parts = [where]
        if given is not None:
            parts.append(f"given {_short(given)}")
        if allowed is not None:
            parts.append(f"allowed: {_short(allowed)}")
        if action:
            parts.append(action)
        super().__init__("; ".join(parts))


class ConfigError(InputError):
    """A key or value of a configuration file is wrong."""


class TaskError(InputError):
    """A task file is missing, incomplete, or its reference or starting kernel fails."""


class TaskErrors(TaskError):
    """Several tasks are wrong, each in its own way.

    Args:
        errors: One for each.
    """

    def __init__(self, *errors: TaskError) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors = errors

    @classmethod
    def of(cls, errors: list[TaskError]) -> TaskError:
        """One that tells of all of these, of which there is at least one."""
        return errors[0] if len(errors) == 1 else cls(*errors)


class StoreError(InputError):
    """A population store cannot be used as asked."""


class StoreMissingError(StoreError):
    """There is no population store at that place."""


class StoreInUseError(StoreError):
    """Another live run owns the store."""


class StoreVersionError(StoreError):
    """The store's schema is newer than this version knows, or the file is no population store."""


class StoreFullError(StoreError):
    """A record could not be written because the disk is full; what was committed before stays."""


class BundleError(InputError):
    """A bundle is none, is damaged, or does not continue the store that it is given to."""


class DeviceError(TritonEvolveError):
    """A device was asked for and is absent, or failed its health kernel."""


class BadDeviceError(DeviceError):
    """A device failed its health check twice in a row; the message names it and says what is wrong. A run uses it no more."""


class OtherDeviceError(DeviceError):
    """A device is of another model than the one that the run optimises for; figures of two models do not compare."""


class PlanError(TritonEvolveError):
    """A launch plan from a sandbox is malformed, oversized or hostile."""


class ModelError(TritonEvolveError):
    """A language-model request failed for good; the proposal failed, the search goes on."""


class SpendLimitError(ModelError):
    """The account or the run's budget has no money left; the search must stop asking."""


class SandboxError(TritonEvolveError):
    """A sandbox process cannot be started on this machine (set TRITON_EVOLVE_DEBUG=1 to see its own messages)."""


class WorkerDied(TritonEvolveError):
    """A child process ended without an answer.

    Args:
        role: The process role, e.g. ``trace`` or ``replay``.
        reason: ``deadline``, ``signal N``, ``exit N``, ``memory`` or ``output too large``.

    Attributes:
        told: What it was at, where it told.
    """

    def __init__(self, role: str, reason: str) -> None:
        super().__init__(f"the {role} process ended without an answer: {reason}")
        self.role = role
        self.reason = reason
        self.told = ""


class WorkerNotReady(WorkerDied):
    """A child process could not start, or not in time: whatever it was to do has not begun."""


class WorkerOutOfMemory(WorkerDied):
    """A child process asked its device for more memory than there was."""


def _short(value: object, limit: int = 300) -> str:
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        text, limit = (
            ", ".join(str(item) for item in value),
            8 * limit,
        )  # names that may be given are of no use where they are cut
    else:
        lines = value.splitlines() if isinstance(value, str) else []
        text = repr(lines[0] + " …" if len(lines) > 1 else value) if isinstance(value, str) else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
