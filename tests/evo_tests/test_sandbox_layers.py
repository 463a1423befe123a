"""Every layer of the sandbox stops something that nothing else stops, and the sandbox works on where a machine refuses a layer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from evo.tracing.privileges import NOBODY, others_can_reach
from evo.tracing.probes import PROBES, ProbeResult, run_probes
from evo.tracing.sandbox import abilities, search_path

STRANGER = 54321
ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="only root can take another identity or lack capabilities")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        if ROOT:
            os.chown(folder, STRANGER, STRANGER)
        yield folder


@cache
def interpreter() -> str:
    """One that a stranger may run: perhaps the system's, since the probes need the standard library only."""
    for path in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(path) and others_can_reach([os.path.realpath(path), HERE]):
            version = subprocess.run(
                [path, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True, text=True
            )
            if version.stdout.strip() == "True":
                return path
    pytest.skip("no interpreter that another user may run")


def weakened(home: str, **wanted: Any) -> tuple[dict[str, bool], dict[str, ProbeResult]]:
    python = interpreter() if wanted.get("uid") else sys.executable
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[1]) if wanted.get("uid") else search_path(),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment |= {"HOME": home} if wanted.get("uid") else {}
    done = subprocess.run(
        [python, str(HERE / "sandbox_weakened.py"), json.dumps(wanted)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd="/",
        timeout=60,
    )
    found = json.loads(done.stdout)
    if not found["abilities"]["TCP refused by Landlock"] and found["abilities"]["own /proc"]:
        mounts = found["mounts"]  # a root of its own, in which only the working folder can be written
        assert set(mounts["folders"]) == {"/proc", mounts["own"]}
    return found["abilities"], {result["name"]: ProbeResult(**result) for result in found["results"]}


def loose(results: dict[str, ProbeResult]) -> set[str]:
    return {name for name, result in results.items() if not result.contained}


@pytest.mark.parametrize("gpu", [False, True])
def test_every_probe_is_contained(gpu: bool) -> None:
    if not all(abilities().values()):
        pytest.skip(f"this machine offers less: {abilities()}")
    results = run_probes(gpu=gpu)
    assert [result.name for result in results] == list(PROBES)
    assert [result for result in results if not result.contained] == []
    assert all(result.how for result in results)


@needs_root
def test_every_probe_is_contained_for_a_user_without_rights(home: str) -> None:
    able, results = weakened(home, refuse=[], uid=STRANGER)
    assert [name for name, there in able.items() if not there] == ["user of its own"]
    assert loose(results) == set()


@needs_root
def test_a_child_of_root_has_no_capability_where_packages_are_public() -> None:
    program = (
        "import json; from evo.tracing.sandbox import ForkServer, Limits; server = ForkServer('test', Limits());"
        "print(json.dumps(server.call('tests.evo_tests.sandbox_children:identity', {}, deadline_s=30))); server.close()"
    )
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([interpreter(), "-c", program], env=environment, cwd="/", capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["uid"] == NOBODY
    assert [found[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [0, 0, 0, 0]


FILES = {"reads a private file in the user's home", "reads the store"}
WRITES = {"writes into the store", "writes a file beside the store"}
PROCESSES = {
    *("reads a secret from other processes' environments", "sees other processes"),
    *("signals a process of the caller", "opens the memory of a process of the caller"),
}
DISK = {"fills the disk with many files"}


@needs_root
@pytest.mark.parametrize("uid", [None, STRANGER])
def test_without_landlock_a_root_of_its_own_hides_files(home: str, uid: int | None) -> None:
    able, results = weakened(home, refuse=["landlock"], uid=uid)
    assert able["files limited by Landlock or a root of its own"]
    assert not able["TCP refused by Landlock"]
    assert loose(results) == set()
    assert results["reads the store"].how.startswith("own root")


@needs_root
def test_without_both_of_them_files_of_ours_lie_open_but_processes_are_apart(home: str) -> None:
    able, results = weakened(home, refuse=["landlock", "mounts"], uid=STRANGER)
    assert not able["files limited by Landlock or a root of its own"]
    assert loose(results) >= FILES | WRITES
    assert results["signals a process of the caller"].how.startswith("process namespace")


@needs_root
def test_without_namespaces_landlock_hides_processes_and_files(home: str) -> None:
    able, results = weakened(home, refuse=["namespaces"], uid=STRANGER)
    assert not able["own process namespace"]
    assert loose(results) == DISK  # the number of processes, and their memory, are watched
    assert results["starts more processes than allowed"].how == "count of processes: processes"
    assert results["connects to the caller by TCP"].how.startswith("seccomp")


@needs_root
def test_without_both_a_child_of_a_user_is_that_user(home: str) -> None:
    _, results = weakened(home, refuse=["namespaces", "landlock"], uid=STRANGER)
    assert loose(results) >= FILES | WRITES | PROCESSES | DISK
    kept = {
        "reads a secret from its own environment",
        "connects to the caller by TCP",
        "traces a process of the caller",
        "becomes root",
    }
    kept |= {"outlives its deadline as a daemon", "allocates more memory than allowed in several processes"}
    assert not loose(results) & kept


@needs_root
def test_without_both_a_child_of_root_is_another_user(home: str) -> None:
    """With packages in a private folder (as root's home is) it may read files of others, else not even that."""
    able, results = weakened(home, refuse=["namespaces", "landlock"])
    assert able["user of its own"]
    assert able["number of processes limited"]
    assert not loose(results) & (WRITES | {"signals a process of the caller", "changes this program's code", "becomes root"})


@needs_root
def test_in_a_container_with_few_capabilities_a_child_of_root_is_another_user(home: str) -> None:
    able, results = weakened(home, refuse=["namespaces"], container=True)
    assert able["user of its own"]
    assert not able["own user namespace"]
    assert loose(results) == DISK


@needs_root
def test_without_mounts_the_rest_holds(home: str) -> None:
    able, results = weakened(home, refuse=["mounts"])
    assert not able["own /proc"]
    assert able["own process namespace"]
    assert loose(results) == DISK


@needs_root
@pytest.mark.parametrize(("also", "layer"), [([], "Landlock"), (["landlock"], "network namespace")])
def test_without_seccomp_the_network_is_still_out_of_reach(home: str, also: list[str], layer: str) -> None:
    able, results = weakened(home, refuse=["seccomp", *also], uid=STRANGER)
    assert not able["system calls filtered by seccomp"]
    # The kernel is open to more attacks, and a server's calls can talk to each other.
    assert loose(results) <= {"gains capabilities in a new user namespace", "leaves shared memory behind for the next call"}
    assert results["connects to the caller by TCP"].how.startswith(layer)
