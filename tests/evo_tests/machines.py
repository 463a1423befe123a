"""A Ray cluster of several machines on this one: network, process, mount and host-name namespaces each where we are root, else loopback
addresses; their plugs and cables can be pulled."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.evo_tests.running_processes import ROOT, alive, kill, titled, wait_until

MARK = "TRITON_EVOLVE_TEST_MACHINE"
"""Environment variable with the machine's name."""
OWNED = "TRITON_EVOLVE_TEST_OWNED_BY"
"""And with one that no other machine has, of whatever test."""

OURS = ("ray::EngineActor", "ray::EvaluatorActor", "ray::ProposerActor", "evo.tracing", "evo.evaluation", "evo.main")
"""What no machine may have left when a run has ended."""

MEMORY = Path("/sys/fs/cgroup/memory")
"""Where control groups (of version 1) limit memory."""

QUICK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
}
"""Ray's patience, so that a test need not wait a minute for it."""

_NUMBERS = itertools.count()


@functools.cache
def can_unshare() -> bool:
    """Whether machines can have namespaces here."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return False
    name = f"te{os.getpid()}x"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        tried = ["ip", "netns", "exec", name, "unshare", "--mount", "--uts", "--pid", "--fork", "true"]
        made = subprocess.run(tried, capture_output=True, check=False).returncode == 0
        _ip("netns", "del", name)
    return made


def busy_sign(owner: str) -> Path:
    """There while an evaluator of the machine that is called so in `OWNED` is at work."""
    return Path("/tmp", f"{owner}.busy")


class Machine:
    """One of a cluster.

    Args:
        name: Its host name, where it can have one; also in the environment, as `MARK`.
        address: Its own.
        bridge: What its cable leads to; None without namespaces.
        tmpfs: Folders that are small disks of their own there, with their sizes.
        memory_bytes: Of all its processes together; None without a limit.

    Attributes:
        owner: Names its cable, its namespace and, in the environment, its processes; no other machine has it.
    """

    def __init__(
        self, name: str, address: str, bridge: str | None, tmpfs: Mapping[Path, str], memory_bytes: int | None = None
    ) -> None:
        self.name = name
        self.address = address
        self._bridge = bridge
        self._tmpfs = tmpfs
        self._memory_bytes = memory_bytes
        self.owner = f"te{os.getpid() % 100000}v{next(_NUMBERS)}"
        self._init: subprocess.Popen[bytes] | None = None
        self.environment = {MARK: name, OWNED: self.owner}

    def plug_in(self) -> None:
        """Starts the machine, without Ray."""
        if self._bridge is None:
            return
        _ip("netns", "add", self.owner)
        _ip("link", "add", self.owner, "type", "veth", "peer", "name", "eth0", "netns", self.owner)
        _ip("link", "set", self.owner, "master", self._bridge, "up")
        _ip("-n", self.owner, "address", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self.owner, "link", "set", "eth0", "up")
        _ip("-n", self.owner, "link", "set", "lo", "up")
        Path("/tmp/ray").mkdir(exist_ok=True)
        disks = {Path("/dev/shm"): "256m", Path("/tmp/ray"): "512m", **self._tmpfs}
        mounts = "; ".join(f"mkdir -p {path} && mount -t tmpfs -o size={size} tmpfs {path}" for path, size in disks.items())
        if self._memory_bytes is not None:
            self._group.mkdir()
            (self._group / "memory.limit_in_bytes").write_text(str(self._memory_bytes))
        # bash, as the first process, takes in the orphans; whoever is killed must not stay a zombie, whose children live on.
        script = (
            f"set -e; hostname {self.name}; mount --make-rprivate /; {mounts}; echo up; while :; do sleep 1000 & wait $!; done"
        )
        unshare = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._init = subprocess.Popen(
            ["ip", "netns", "exec", self.owner, *unshare, "bash", "-c", script], stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._init.stdout is not None
        assert self._init.stdout.readline() == b"up\n"

    def busy(self) -> None:
        """Waits until its evaluator has just begun an evaluation."""
        busy_sign(self.owner).unlink(missing_ok=True)
        wait_until(busy_sign(self.owner).exists, f"work on {self.name}", 60)

    def power_off(self) -> None:
        """All its processes end at once."""
        if self._init is not None:
            self._init.kill()
            self._init.wait()
        for pid in self.pids():
            kill(pid)
        wait_until(lambda: not alive(self.pids()), f"end of {self.name}", 30)
        busy_sign(self.owner).unlink(missing_ok=True)
        if self._init is not None:
            self._init = None
            _ip("netns", "del", self.owner)
            if self._memory_bytes is not None:
                wait_until(lambda: not (self._group / "cgroup.procs").read_text(), "end of all its processes", 30)
                self._group.rmdir()

    def cut(self) -> None:
        """Pulls the network cable."""
        _ip("link", "set", self.owner, "down")

    def heal(self) -> None:
        """Puts it in again."""
        _ip("link", "set", self.owner, "up")

    def command(self, arguments: Sequence[str]) -> list[str]:
        """What runs a command on the machine."""
        if self._init is None:
            return list(arguments)
        (first,) = _children(self._init.pid)
        entered = ["nsenter", f"--target={first}", "--net", "--mount", "--uts", "--pid", "--", *arguments]
        return (
            entered
            if self._memory_bytes is None
            else ["sh", "-c", f'echo $$ > {self._group}/cgroup.procs; exec "$@"', "-", *entered]
        )

    def run(self, *arguments: str, patience_s: float = 300.0) -> str:
        """Runs a command there to its end."""
        done = subprocess.run(
            self.command(arguments), env=self.environment, capture_output=True, text=True, timeout=patience_s, check=False
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def pids(self) -> list[int]:
        """All its processes, also those that forgot their environment."""
        wanted, found = f"{OWNED}={self.owner}".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._bridge is not None:
                    here = (folder / "ns/net").stat().st_ino == Path(f"/run/netns/{self.owner}").stat().st_ino
                else:
                    here = wanted in (folder / "environ").read_bytes().split(b"\0")
                if here:
                    found.append(int(folder.name))
        return found

    def titled(self, text: str) -> list[int]:
        """Those of its processes whose command line contains a text."""
        return titled(self.pids(), text)

    def pids_of_ray(self) -> list[int]:
        """Ray's own ones and those of its workers."""
        return sorted({*self.titled("raylet"), *self.titled("gcs_server"), *self.titled("ray::")})

    @property
    def _group(self) -> Path:
        return MEMORY / self.owner

    @property
    def ours(self) -> list[int]:
        """Live processes of a run."""
        return sorted({pid for text in OURS for pid in alive(self.titled(text))})


class Machines:
    """A cluster: the head and what joined it.

    Args:
        folder: For what is said.
        settings: Further environment of every process.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] = QUICK) -> None:
        self._folder = folder
        self._unshared = can_unshare()
        self._bridge = f"te{os.getpid() % 100000}b{next(_NUMBERS)}" if self._unshared else None
        self._settings = settings
        self._port = 6379 if self._unshared else _free_port()
        self._places = itertools.count(1)
        self.machines: dict[str, Machine] = {}

    @property
    def address(self) -> str:
        """Of the cluster."""
        return f"{self.machines['head'].address}:{self._port}"

    @property
    def head(self) -> Machine:
        """Where the driver runs."""
        return self.machines["head"]

    def __enter__(self) -> Machines:
        if self._bridge is not None:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("link", "set", self._bridge, "up")
        return self

    def __exit__(self, *exc: object) -> None:
        for machine in self.machines.values():
            machine.power_off()
        if self._bridge is not None:
            _ip("link", "del", self._bridge)

    def start_head(self, cpus: int = 0) -> Machine:
        """The first machine; also again, after it was powered off."""
        machine = self.machines.get("head") or self._machine("head", {})
        machine.plug_in()
        ray_start = ["ray", "start", "--head", f"--port={self._port}", "--include-dashboard=false", *self._options(machine, cpus)]
        machine.run(*ray_start, *([] if self._unshared else [f"--temp-dir={tempfile.mkdtemp(prefix='te')}"]))
        return machine

    @property
    def limits_memory(self) -> bool:
        """Whether a machine can have less memory here than this one."""
        return self._unshared and os.access(MEMORY / "cgroup.procs", os.W_OK)

    def join(
        self,
        name: str,
        cpus: int = 1,
        tmpfs: Mapping[Path, str] | None = None,
        memory_bytes: int | None = None,
        **settings: str,
    ) -> Machine:
        """Another machine joins; also again, after it was powered off."""
        machine = self.machines.get(name) or self._machine(name, tmpfs or {}, memory_bytes)
        machine.environment.update(settings)
        machine.plug_in()
        self.start_ray(machine, cpus)
        return machine

    def start_ray(self, machine: Machine, cpus: int = 1) -> None:
        """Starts Ray on a machine that is up."""
        machine.run("ray", "start", f"--address={self.address}", *self._options(machine, cpus))

    def node_id(self, machine: Machine) -> str:
        """Ray's name of a machine."""
        listed = f"print(*(n['NodeID'] for n in ray.nodes() if n['NodeManagerAddress'] == '{machine.address}'))"
        return self.head.run("python", "-c", f"import ray; ray.init('{self.address}', log_to_driver=False); {listed}").split()[-1]

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """`triton-evolve ARGUMENTS --address …` on the head; what it says is in ``out.txt``."""
        command = [sys.executable, "-m", "evo.main", *arguments, "--no-export", "--address", self.address]
        with (self._folder / "out.txt").open("a") as out:
            process = subprocess.Popen(
                self.head.command(command),
                cwd=self._folder,
                env=self.head.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                for pid in self.head.titled("evo.main"):
                    kill(pid)
                process.kill()
                process.wait()

    @property
    def said(self) -> str:
        """What the commands said so far."""
        return (self._folder / "out.txt").read_text()

    def ours(self) -> list[int]:
        """Live processes of a run on all machines."""
        return [pid for machine in self.machines.values() for pid in machine.ours]

    def _machine(self, name: str, tmpfs: Mapping[Path, str], memory_bytes: int | None = None) -> Machine:
        place = next(self._places)
        address = f"10.86.{os.getpid() % 250}.{place}" if self._unshared else f"127.0.0.{place}"
        machine = Machine(name, address, self._bridge, tmpfs, memory_bytes)
        machine.environment = {
            **os.environ,
            **self._settings,
            **machine.environment,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "of-this-test-" * 4,
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "RAY_memory_monitor_refresh_ms": "0",
        }
        self.machines[name] = machine
        return machine

    @staticmethod
    def _options(machine: Machine, cpus: int) -> list[str]:
        given = {"node-ip-address": machine.address, "num-cpus": cpus, "num-gpus": 0, "object-store-memory": 80 << 20}
        return [*(f"--{key}={value}" for key, value in given.items()), "--include-log-monitor=false", "--disable-usage-stats"]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
