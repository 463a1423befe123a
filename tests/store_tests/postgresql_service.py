"""A PostgreSQL server of the tests' own, from Debian's package: in a folder that goes with it, reached by a socket in that folder."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NEEDED = ("initdb", "pg_isready", "postgres", "psql")


@dataclass
class Service:
    """A server that runs.

    Attributes:
        folder: Its socket's and data's.
        programs: Folder of ``psql`` and the others.
        process: Of the server.
    """

    folder: Path
    programs: Path
    process: subprocess.Popen[bytes]

    def url(self, database: str = "postgres", **query: str) -> str:
        """Of a database on it, for `open_store`."""
        pairs = "".join(f"&{key}={value}" for key, value in query.items())
        return f"postgresql+psycopg://postgres@/{database}?host={self.folder}{pairs}"

    def sql(self, statement: str, database: str = "postgres") -> str:
        """What a statement answers, as psql prints it."""
        command = [self.programs / "psql", "-h", self.folder, "-U", "postgres", "-d", database, "-qAtX", "-v", "ON_ERROR_STOP=1"]
        ran = subprocess.run([*command, "-c", statement], capture_output=True, text=True, check=False, timeout=60)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    def restart(self) -> None:
        """Ends all connections, as an update of the server does."""
        self.stop()
        self.process = _start(self.folder, self.programs)

    def stop(self) -> None:
        """Ends the server; open connections are broken off."""
        self.process.send_signal(signal.SIGINT)  # "fast shutdown"
        self.process.wait(30)


def programs() -> Path | None:
    """Where the server's programs are; Debian keeps them off the PATH."""
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    places = [*packaged, *map(Path, os.environ.get("PATH", "").split(os.pathsep))]
    return next((place for place in places if all((place / name).exists() for name in NEEDED)), None)


@contextlib.contextmanager
def running_service() -> Iterator[Service | None]:
    """A new server; None where the package is not installed."""
    where = programs()
    if where is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="pg"))  # short, because a socket's path may have 107 characters
    try:
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(folder, account.pw_uid, account.pw_gid)
        made = [
            *_as_postgres(),
            where / "initdb",
            "-D",
            folder / "data",
            "-U",
            "postgres",
            "-A",
            "trust",
            "--no-sync",
            "--locale=C.UTF-8",
        ]
        subprocess.run(made, check=True, capture_output=True, timeout=120, cwd=folder)
        service = Service(folder, where, _start(folder, where))
        try:
            yield service
        finally:
            service.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, where: Path) -> subprocess.Popen[bytes]:
    # It refuses to run as root. No fsync: what is tested is the death of clients and of the server, not of the machine.
    settings = ["-k", folder, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "autovacuum=off"]
    command = [*_as_postgres(), where / "postgres", "-D", folder / "data", *settings]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    deadline = time.monotonic() + 120
    while subprocess.run([where / "pg_isready", "-h", folder, "-q"], check=False).returncode != 0:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError((folder / "log").read_text())
        time.sleep(0.05)
    return process


def _as_postgres() -> list[str]:
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--"] if os.geteuid() == 0 else []
