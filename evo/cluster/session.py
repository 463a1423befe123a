"""Starts a local Ray, or joins a running one, quietly; says what it offers."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from evo.cluster.orphans import nothing_left_of_a_failed_start
from evo.config import ClusterSection
from evo.errors import ConfigError, TritonEvolveError

OBJECT_STORE_BYTES = 128 << 20
"""Of a local Ray: what we send is small and inline."""

ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # an actor without GPUs must see none
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # `uv run` would upload the working folder
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it kills bystanders; sandboxes limit their own memory
    "RAY_DEDUP_LOGS": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # else a worker that fails while a run ends anyway is a traceback among its last lines
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
}

_NO_ANSWER = "no Ray cluster answers there, or it refuses the token in ~/.ray/auth_token, which RAY_AUTH_MODE=token presents"


@dataclass(frozen=True)
class Capacity:
    """What the cluster has: counts of CPU cores and GPUs, and whether we started it."""

    cpus: int
    gpus: int
    local: bool


@contextlib.contextmanager
def ray_session(cluster: ClusterSection) -> Iterator[Capacity]:
    """Ray for the duration of a `with` block; nothing that was started outlives it.

    A Ray that this process is already connected to is used as it is and left running.

    Raises:
        ConfigError: No cluster answers at the address.
        TritonEvolveError: A local Ray does not start.
        SystemExit: SIGTERM came while Ray was starting and had a handler of its own in place; what it had started is ended.
    """
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    import ray

    if ray.is_initialized():
        yield _capacity(local=False)
        return
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    with nothing_left_of_a_failed_start(ray.shutdown):
        try:
            if cluster.address is None:
                ray.init(address="local", object_store_memory=OBJECT_STORE_BYTES, **options)
            else:
                options.pop("include_dashboard")
                ray.init(address=cluster.address, **options)
        except (OSError, RuntimeError, ray.exceptions.RayError) as error:
            raise _not_there(cluster, " ".join(str(error).split())) from error
    try:
        yield _capacity(local=cluster.address is None)
    finally:
        ray.shutdown()


def address_option(cluster: ClusterSection) -> str:
    """What a command that goes on there is given; begins with a blank, and is empty where it starts a Ray of its own."""
    return f" --address {shlex.quote(cluster.address)}" if cluster.address else ""


def _not_there(cluster: ClusterSection, reason: str) -> TritonEvolveError:
    if cluster.address is not None:
        return ConfigError("cluster.address", given=cluster.address, action=f"{_NO_ANSWER}: {reason}")
    folder = os.path.join(os.environ.get("RAY_TMPDIR", "/tmp"), "ray")
    action = f"see that there is space in {folder} (RAY_TMPDIR names another place) and memory, and that ~/.ray can be written"
    return TritonEvolveError(f"Ray does not start; {action}: {reason}")


def _capacity(*, local: bool) -> Capacity:
    import ray

    resources = ray.cluster_resources()
    return Capacity(int(resources.get("CPU", 0)), int(resources.get("GPU", 0)), local)
