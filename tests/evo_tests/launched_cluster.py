"""A machine of its own for tests of the launcher: private namespaces with an sshd, a home and an own /tmp/ray."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SSHD = "/usr/sbin/sshd"

KEY = "sk-canary-of-the-head"
"""A key as proposers would need it, in the environment of the head's login shells."""

_INIT = """
set -e
mount -t tmpfs none /dev/shm
mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray
mount -t tmpfs none /run && mkdir /run/sshd
mount --bind {folder}/passwd /etc/passwd
ip link set lo up
{sshd} -f {folder}/sshd_config
touch {folder}/ready
exec sleep infinity
"""

_SSHD_CONFIG = """
Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PermitRootLogin yes
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile {folder}/sshd.pid
"""

_BASHRC = """
export PATH={bin}:$PATH PYTHONPATH={paths} TRITON_DEFAULT_FP_FUSION=1 RAY_USAGE_STATS_ENABLED=0 ANTHROPIC_API_KEY={key}
"""


def missing() -> str | None:
    """Why there can be no such machine here; None where there can."""
    if os.geteuid() != 0:
        return "needs root, for namespaces"
    programs = [name for name in ("unshare", "nsenter", "ip", "ss", "rsync", "ssh") if shutil.which(name) is None]
    if not Path(SSHD).exists():
        programs.append("sshd")
    if programs:
        return f"{', '.join(programs)} missing; on Debian: apt-get install openssh-server openssh-client rsync iproute2"
    if subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True, check=False).returncode:
        return "this machine lets nobody make namespaces"
    return None


@dataclass
class Machine:
    """Namespaces in which an sshd runs.

    Attributes:
        folder: Its files; ``head`` in it is the home of who logs in, ``user`` that of who works on this end.
        pid: Of its first process.
    """

    folder: Path
    pid: int

    @property
    def head(self) -> Path:
        """Home of who logs in."""
        return self.folder / "head"

    def start(self, output: Path, *command: str, **variables: str) -> subprocess.Popen[bytes]:
        """A command in it, with all its output in one file."""
        environment = {
            "HOME": str(self.folder / "user"),
            "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "TRITON_DEFAULT_FP_FUSION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "TERM": "dumb",
            **variables,
        }
        inside = ["nsenter", "-t", str(self.pid), "--mount", "--net", "--pid", *command]
        with output.open("wb") as stream:
            return subprocess.Popen(
                inside, env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
            )

    def run(self, *command: str, timeout: float = 200, **variables: str) -> tuple[int, str]:
        """Exit status and output of a command in it."""
        output = self.folder / "output"
        process = self.start(output, *command, **variables)
        try:
            process.wait(timeout)
        finally:
            process.kill()
        return process.returncode, output.read_text(errors="replace")

    def cluster_file(self, search: Mapping[str, Any], head: str = "127.0.0.1", workers: Sequence[str] = ()) -> Path:
        """configs/evolve.yaml with this machine's ssh and another search; packages are there already."""
        document = yaml.safe_load((ROOT / "configs/evolve.yaml").read_text())
        document["cluster_name"] = f"test-{self.pid}"
        document["provider"] |= {"head_ip": head, "worker_ips": list(workers)}
        document["auth"] = {"ssh_user": "root", "ssh_private_key": str(self.folder / "user_key")}
        document["setup_commands"] = [line for line in document["setup_commands"] if "pip install" not in line]
        document["metadata"] = {"triton_evolve": dict(search)}
        path = self.folder / "evolve.yaml"
        path.write_text(yaml.safe_dump(document))
        return path


@contextlib.contextmanager
def machine(folder: Path, paths: str = "") -> Iterator[Machine]:
    """A new machine; what runs in it ends with it.

    Args:
        folder: For its files.
        paths: More folders for Python to import from on the head.
    """
    for home in ("head/.ssh", "user/.ssh"):
        (folder / home).mkdir(parents=True)
    for key in ("host_key", "user_key"):
        if not (folder / key).exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    others = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")]
    # Not HOME alone: ssh looks its user's home up.
    (folder / "passwd").write_text("\n".join([f"root:x:0:0:root:{folder}/head:/bin/bash", *others, ""]))
    (folder / "sshd_config").write_text(_SSHD_CONFIG.format(folder=folder))
    imported = os.pathsep.join(filter(None, [str(ROOT), paths]))
    bashrc = _BASHRC.format(bin=Path(sys.executable).parent, paths=imported, key=KEY)
    (folder / "head/.bashrc").write_text(bashrc)
    # It ends with this process, too, however that ends.
    command = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--propagation",
        "private",
    ]
    init = subprocess.Popen([*command, "bash", "-c", _INIT.format(folder=folder, sshd=SSHD)])
    try:
        deadline = time.monotonic() + 20
        while not (folder / "ready").exists():
            assert init.poll() is None, "the machine did not start"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (first,) = Path(f"/proc/{init.pid}/task/{init.pid}/children").read_text().split()
        yield Machine(folder, int(first))
    finally:
        init.send_signal(signal.SIGKILL)  # its children's first process dies with it, and with that one all others
        init.wait()


@contextlib.contextmanager
def machines(folder: Path, count: int, paths: str = "") -> Iterator[tuple[list[Machine], list[str]]]:
    """Several, each reached from each by its address; keys of users are the same everywhere."""
    with contextlib.ExitStack() as stack:
        made: list[Machine] = []
        for number in range(count):
            own = folder / str(number)
            own.mkdir()
            for name in ("user_key", "user_key.pub") if made else ():
                shutil.copy(made[0].folder / name, own / name)
            made.append(stack.enter_context(machine(own, paths)))
        addresses = [f"10.77.0.{number + 1}" for number in range(count)]
        _wire(made, addresses)
        yield made, addresses


def _wire(made: Sequence[Machine], addresses: Sequence[str]) -> None:
    """A bridge in the first machine, and a cable from each other one to it."""
    first, *others = made
    commands = [(first, "ip link add lan type bridge"), (first, "ip link set lan up")]
    for number, other in enumerate(others):
        commands.append((first, f"ip link add cable{number} type veth peer name lan netns {other.pid}"))
        commands.append((first, f"ip link set cable{number} master lan up"))
    for each, address in zip(made, addresses, strict=True):
        commands.append((each, f"ip addr add {address}/24 dev lan"))
        commands.append((each, "ip link set lan up"))
        commands.append((each, "ip route add default dev lan"))  # Ray takes the address of the way out
    for each, command in commands:
        subprocess.run(["nsenter", "-t", str(each.pid), "--net", *command.split()], check=True)
