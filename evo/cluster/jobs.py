"""The search as a job of Ray: begun once, followed by whoever asks, and not ended where a connection breaks.

Whoever follows a job may go away: the job is the cluster's. Its submission id is ``NAME-N``, the N-th of the search of that name
since the cluster began.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.errors import ConfigError, TritonEvolveError

STOP_WAIT_S = 60
"""How long a search that is told to stop may take to record what it has in hand, before Ray kills it."""

ENDED_S = 30.0
"""How long the cluster may take to notice the end of a job whose log has ended."""

TOKEN_FILE = Path("~/.ray/auth_token")


@dataclass(frozen=True)
class Job:
    """A search that was submitted.

    Attributes:
        id: Its submission id.
        status: As Ray calls it: PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED.
        message: What Ray says of it.
        exit_code: Of the search's process; None before its end.
    """

    id: str
    status: str
    message: str
    exit_code: int | None

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.status in ("STOPPED", "SUCCEEDED", "FAILED")


class Jobs:
    """The job server of a cluster.

    Args:
        address: ``http://host:8265`` (``host:8265`` means that, too), or ``host:port`` of a running Ray; None for that of this host.

    Raises:
        ConfigError: None answers there, or it refuses us.
    """

    def __init__(self, address: str | None) -> None:
        _present_token()
        if address is not None and re.fullmatch(
            r"[^/]+:8265", address
        ):  # without http:// the client asks there for another server
            address = f"http://{address}"
        # The client heeds these before its argument; inside a job they name the cluster, and that is what None means.
        if address is not None:
            os.environ.pop("RAY_ADDRESS", None)
            os.environ.pop("RAY_API_SERVER_ADDRESS", None)
        from ray.exceptions import RayError
        from ray.job_submission import JobSubmissionClient

        logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.WARNING)  # it tells of each connection that it closes
        try:
            self._client: Any = JobSubmissionClient(address)
        except (OSError, RayError, RuntimeError, ValueError) as error:
            raise _not_there(address, error) from error

    def newest(self, name: str) -> Job | None:
        """The last job of the search of a name; None where there is none."""
        numbers = {}
        for details in self._client.list_jobs():
            match = re.fullmatch(rf"{re.escape(name)}-(\d+)", details.submission_id or "")
            if match:
                numbers[int(match[1])] = details.submission_id
        return self.job(numbers[max(numbers)]) if numbers else None

    def job(self, submission_id: str) -> Job:
        """How a job stands."""
        info = self._client.get_job_info(submission_id)
        return Job(submission_id, str(info.status.value), without_log(info.message or ""), info.driver_exit_code)

    def start(self, name: str, entrypoint: str, folder: Path) -> tuple[Job, bool]:
        """Begins a search, unless it goes on already.

        Args:
            name: Of the search.
            entrypoint: Shell command, run on the head in a copy of `folder`.
            folder: What every process of the search finds in its working directory.

        Returns:
            The job, and whether it was begun now.
        """
        before = self.newest(name)
        if before is not None and not before.ended:
            return before, False
        number = 1 + (int(before.id.rpartition("-")[2]) if before is not None else 0)
        # Nothing secret belongs in a runtime environment: whoever may look at the cluster sees it.
        environment = {"working_dir": str(folder), "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}}
        try:
            begun = self._client.submit_job(entrypoint=entrypoint, submission_id=f"{name}-{number}", runtime_env=environment)
        except RuntimeError as error:
            meanwhile = self.newest(name)  # somebody else was quicker
            if meanwhile is None or meanwhile.ended:
                raise TritonEvolveError(f"the job server takes no job: {_line(error)}") from error
            return meanwhile, False
        return self.job(begun), True

    def follow(self, job: Job, write: Callable[[str], None]) -> Job:
        """Hands on what a job writes, from its beginning, until it ends.

        Raises:
            TritonEvolveError: The connection to the job server is lost; the job goes on.
        """
        log = _Written(write)
        while not (now := self.job(job.id)).ended:
            try:
                asyncio.run(self._tail(job.id, log))
                self._wait_for_the_end(job.id)
            except Exception as error:  # noqa: BLE001  (of the client's HTTP library, which is no dependency of ours)
                try:
                    self.job(job.id)
                except Exception:  # noqa: BLE001
                    action = f"the search goes on as job {job.id}; give the same command again to follow it"
                    raise TritonEvolveError(f"the connection to the cluster is lost ({_line(error)}); {action}") from error
                time.sleep(1.0)
        log.add(self.log(job.id), 0)
        return now

    def log(self, submission_id: str) -> str:
        """All that a job has written."""
        return str(self._client.get_job_logs(submission_id))

    def stop(self, job: Job) -> Job:
        """Ends a job as Ctrl-C would, and waits for that: what it has in hand is recorded."""
        self._client.stop_job(job.id)
        deadline = time.monotonic() + STOP_WAIT_S + ENDED_S
        while not (now := self.job(job.id)).ended and time.monotonic() < deadline:
            time.sleep(0.3)
        return now

    async def _tail(self, submission_id: str, log: _Written) -> None:
        position = 0
        async for text in self._client.tail_job_logs(submission_id):
            log.add(text, position)
            position += len(text)

    def _wait_for_the_end(self, submission_id: str) -> None:
        deadline = time.monotonic() + ENDED_S
        while not self.job(submission_id).ended and time.monotonic() < deadline:
            time.sleep(0.2)


def without_log(message: str) -> str:
    """What Ray says of a job's end, without the end of its log, which whoever follows the job has read."""
    return message.partition(", last available logs")[0].strip()


def server_address(given: str | None) -> str | None:
    """What Ray's client calls the address of a job server; without ``http://`` it would ask there for another server, for 40 s."""
    return f"http://{given}" if given is not None and re.fullmatch(r"[^/]+:8265", given) else given


class _Written:
    """Hands on a text that is sent from its beginning more than once, each part of it once."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._length = 0

    def add(self, text: str, position: int) -> None:
        """Takes the part of the text that begins at a position."""
        fresh = text[max(0, self._length - position) :]
        if fresh:
            self._write(fresh)
            self._length = position + len(text)


def _present_token() -> None:
    """Makes Ray's client show the cluster's token where there is one, as a Ray that is started here would ask for it."""
    given = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if given or TOKEN_FILE.expanduser().is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _not_there(address: str | None, error: Exception) -> ConfigError:
    action = (
        "no job server answers there, or it refuses the token in ~/.ray/auth_token; where the cluster is elsewhere, forward port 8265 "
        f"of its head to this machine (`ray dashboard FILE`, `kubectl port-forward`): {_line(error)}"
    )
    return ConfigError("--address", given=address or "the Ray of this host", action=action)


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:400]
