"""Tries to reach a Ray of this host, from here, from a tracer's sandbox and from a hosted candidate's; prints what was reached."""

from __future__ import annotations

import inspect
import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

MARK = "reached: "


def reach(request: dict[str, Any]) -> dict[str, Any]:
    """Which of the named sockets, ports and files can be reached."""
    import socket

    reached = []
    for path in request["sockets"]:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(path)
                reached.append(path)
        except OSError:
            continue
    for port in request["ports"]:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            reached.append(str(port))
        except OSError:
            continue
    for path in request["files"]:
        try:
            with open(path, "rb") as file:
                file.read(1)
            reached.append(path)
        except OSError:
            continue
    return {"reached": reached}


def targets(files: list[str]) -> dict[str, Any]:
    """What a Ray of this host has, and these files."""
    listening = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    ports = sorted({int(fields[1].rpartition(":")[2], 16) for fields in listening if fields[3] == "0A"})
    sockets = sorted(map(str, Path("/tmp/ray/session_latest/sockets").iterdir()))
    raylets = [folder.parent for folder in Path("/proc").glob("[0-9]*/comm") if folder.read_text() == "raylet\n"]
    logs = ["/tmp/ray/session_latest/logs/raylet.out", *(f"{raylet}/environ" for raylet in raylets)]
    return {"sockets": sockets, "ports": ports, "files": [*files, *logs]}


def from_a_tracer(request: dict[str, Any]) -> list[str]:
    """From a process that has no GPU and so needs no sockets."""
    from evo.tracing.sandbox import ForkServer, Limits

    server = ForkServer("trace", Limits())
    try:
        return list(server.call("tests.evo_tests.reaching:reach", request, deadline_s=60)["reached"])
    finally:
        server.close()


def from_a_hosted_candidate(request: dict[str, Any]) -> list[str]:
    """From candidate code in a process that may have unix sockets."""
    from evo.evaluation.failed import Failed
    from evo.evaluation.hosted_session import HostedProcess
    from evo.tracing.sandbox import ForkServer, Limits

    code = (
        f"from typing import Any\n{inspect.getsource(reach)}\nraise ValueError({MARK!r} + repr(reach({request!r})['reached']))\n"
    )
    candidate = {"device": "cpu", "source": code, "entry": "f", "form": "function", "configuration": {}, "init_arguments": []}
    candidate |= {"backward": False, "mutates": [], "target": None}
    environment = {"TRITON_INTERPRET": "1"}
    server = ForkServer("hosted", Limits(), preload=("evo.evaluation.hosted_child",), environment=environment, gpu=True)
    server.start()
    process = HostedProcess(server, candidate, deadline_s=120)
    try:
        process.load()
    except Failed as failed:
        message = failed.failure.message
        return list(json.loads(message[message.index(MARK) + len(MARK) :].splitlines()[0].replace("'", '"')))
    finally:
        process.end()
        server.close()
    raise AssertionError("the candidate said nothing")


def main() -> None:
    """Prints JSON: who → what was reached."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as service:
        os.chmod(folder, 0o755)
        own = f"{folder}/service"  # of a careless service: as root, users of sandboxes may not write Ray's own
        service.bind(own)
        os.chmod(own, 0o777)
        service.listen(5)
        request = targets(sys.argv[1:])
        request["sockets"].append(own)
        found = {"here": reach(request)["reached"], "tracer": from_a_tracer(request), "hosted": from_a_hosted_candidate(request)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
