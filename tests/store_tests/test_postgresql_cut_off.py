"""A PostgreSQL server that a cable was pulled from: nobody says that it has gone, so whoever waits for it has to give up."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from evo.errors import StoreError
from population_store.contract import samples
from population_store.opening import open_store
from tests.evo_tests.machines import can_unshare
from tests.store_tests.postgresql_service import Service

RELAY = """
import socket, sys, threading
def hand_on(source, target):
    while data := source.recv(65536):
        target.sendall(data)
server = socket.create_server(("", 5432))
print("up", flush=True)
while True:
    here, there = server.accept()[0], socket.socket(socket.AF_UNIX)
    there.connect(sys.argv[1])
    for pair in ((here, there), (there, here)):
        threading.Thread(target=hand_on, args=pair, daemon=True).start()
"""
"""What makes the server's socket one of another host."""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@pytest.fixture
def host() -> Iterator[str]:
    """A network namespace at the end of a cable, with the address 10.78.0.2."""
    if not can_unshare():
        pytest.skip("needs root, for namespaces")
    name = f"te{os.getpid()}p"
    ip("netns", "add", name)
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("address", "add", "10.78.0.1/24", "dev", name)
        ip("link", "set", name, "up")
        ip("-n", name, "address", "add", "10.78.0.2/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        yield name
    finally:
        ip("netns", "del", name)


@pytest.mark.slow
def test_a_server_that_is_cut_off_is_given_up_within_a_minute(postgresql: Service, host: str) -> None:
    command = ["ip", "netns", "exec", host, sys.executable, "-c", RELAY, str(postgresql.folder / ".s.PGSQL.5432")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as relay:
        try:
            assert relay.stdout is not None
            assert relay.stdout.readline() == b"up\n"
            with open_store("postgresql+psycopg://postgres@10.78.0.2/postgres?schema=cut", header=samples.HEADER) as store:
                store.record(samples.history(0), samples.spent_after(1))
                ip("-n", host, "link", "set", "eth0", "down")
                began = time.monotonic()
                with pytest.raises(StoreError, match="no connection to the server"):
                    store.record(samples.history(1), samples.spent_after(2))
                assert time.monotonic() - began < 60
        finally:
            relay.kill()
    with open_store(postgresql.url(schema="cut")) as reader:
        assert [entry for _, entry in reader.journal()] == samples.history(0)
