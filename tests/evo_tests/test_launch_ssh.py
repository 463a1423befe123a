"""`ray up` and `ray submit` with configs/evolve.yaml, as a user gives them: over a real ssh, to a machine of the tests' own."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evo.cluster.jobs import STOP_WAIT_S
from population_store.opening import open_store
from tests.evo_tests import launched_cluster
from tests.evo_tests.launched_cluster import KEY, ROOT, Machine, machine, machines

SCRIPT = str(ROOT / "experiments/evolve.py")
JOBS = "http://127.0.0.1:8265"


_JOBS = f"""
import sys, urllib.request
request = urllib.request.Request("{JOBS}/api/jobs/", headers={{"Authorization": "Bearer " + sys.argv[1]}} if sys.argv[1] else {{}})
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""

_KILL_SSH = 'for p in /proc/[0-9]*; do [ "$(cat $p/comm)" = ssh ] && kill -KILL ${p#/proc/}; done; true'
"""In these namespaces there is no ssh but that of the test."""


def search(name: str, evaluations: int, evaluator: str) -> dict[str, object]:
    return {
        "name": name,
        "tasks": ["softmax"],
        "target": "cuda:90",
        "evaluator": f"evaluators_of_tests:{evaluator}",
        "budget": {"evaluations": evaluations},
        "evaluation": {"tune_trials": 0},
        "cluster": {"device": "cpu", "evaluators": 1},
    }


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, evaluator_module: str) -> Iterator[tuple[Machine, Path]]:
    """A machine on which Ray was started by `ray up`, and the file that was given to it."""
    reason = launched_cluster.missing()
    if reason is not None:
        pytest.skip(reason)
    import evaluators_of_tests

    with machine(tmp_path_factory.mktemp("machine"), str(Path(str(evaluators_of_tests.__file__)).parent)) as made:
        code, output = made.run("ray", "get-auth-token", "--generate")
        assert code == 0, output
        path = made.cluster_file(search("launched", 20, "without_keys"))
        code, output = made.run("ray", "up", "-y", str(path))
        assert code == 0, output
        yield made, path


def evaluated(made: Machine, name: str) -> int:
    with open_store(str(made.head / f"runs/{name}.sqlite")) as store:
        return store.spent.evaluations


def wait_for(pattern: str, output: Path, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not re.search(pattern, output.read_text(errors="replace")):
        assert time.monotonic() < deadline, output.read_text(errors="replace")
        time.sleep(0.2)


def test_one_file_starts_a_search_over_ssh(head: tuple[Machine, Path]) -> None:
    made, path = head
    code, output = made.run("ray", "submit", str(path), SCRIPT)
    assert code == 0, output
    assert re.search(r'read .*/ray_bootstrap_config\.yaml: \{"name":"launched"', output)
    assert "job launched-1: begun" in output
    assert "the budget of 20 evaluations is used" in output
    assert evaluated(made, "launched") == 20
    # What the cluster shows to whoever may look at it has no key, and nobody may look without the token.
    assert (made.head / ".ray/auth_token").stat().st_mode & 0o777 == 0o600
    token = (made.head / ".ray/auth_token").read_text()
    code, shown = made.run(sys.executable, "-c", _JOBS, token)
    assert code == 0, shown
    assert [job["submission_id"] for job in json.loads(shown)] == ["launched-1"]
    assert KEY not in shown
    assert token not in shown
    code, refused = made.run(sys.executable, "-c", _JOBS, "")
    assert (code, "HTTP Error 401" in refused) == (1, True), refused
    code, listening = made.run("ss", "-Hltn", "sport = :8265")
    assert listening.split()[3] == "127.0.0.1:8265"


def test_a_hostile_variant_reaches_nothing_of_the_ray_on_its_node(head: tuple[Machine, Path]) -> None:
    made, _ = head
    token = str(made.head / ".ray/auth_token")
    code, output = made.run(str(Path(sys.executable)), "-m", "tests.evo_tests.reaching", token, str(made.head / ".bashrc"))
    assert code == 0, output
    found = json.loads(output.splitlines()[-1])
    # The test is worth something: outside of a sandbox all of it can be reached.
    assert {
        "6379",
        "8265",
        "/tmp/ray/session_latest/sockets/raylet",
        "/tmp/ray/session_latest/sockets/plasma_store",
        token,
    } <= set(found["here"])
    assert any(path.endswith("/environ") for path in found["here"])
    assert any(path.endswith("/service") for path in found["here"])
    assert (found["tracer"], found["hosted"]) == ([], [])


@pytest.mark.slow
def test_a_search_outlives_its_connection_is_followed_again_stopped_and_gone_on_with(head: tuple[Machine, Path]) -> None:
    made, _ = head
    path = made.cluster_file(search("lasting", 5000, "slow"))
    code, output = made.run("ray", "up", "-y", "--no-restart", str(path))
    assert code == 0, output
    submit = ("ray", "submit", str(path), SCRIPT)

    first = made.start(made.folder / "first", *submit)
    wait_for(r"job lasting-1: begun[\s\S]*search: ", made.folder / "first")
    made.run("bash", "-c", _KILL_SSH)
    assert first.wait(30) != 0
    before = evaluated(made, "lasting")

    second = made.start(made.folder / "second", *submit)
    wait_for(r"job lasting-1: goes on already[\s\S]*search: ", made.folder / "second")
    deadline = time.monotonic() + 60
    while evaluated(made, "lasting") < before + 10:
        assert time.monotonic() < deadline, "the search ended with the connection"
        time.sleep(0.5)
    began = time.monotonic()
    code, output = made.run(*submit, "stop")
    assert code == 0, output
    assert "job lasting-1: STOPPED" in output
    assert time.monotonic() - began < STOP_WAIT_S, "Ray has waited in vain: this machine's first process takes in no orphans"
    assert second.wait(60) != 0
    assert "job lasting-1 was stopped" in (made.folder / "second").read_text()

    done = evaluated(made, "lasting")
    path = made.cluster_file(search("lasting", done + 20, "slow") | {"seed": 7})
    code, output = made.run("ray", "up", "-y", "--no-restart", str(path))
    assert code == 0, output
    code, output = made.run(*submit)
    assert code == 0, output
    assert "job lasting-2: begun" in output
    assert "resuming lasting" in output
    assert "as the run began, not as the file has it now: seed" in " ".join(output.split())
    assert evaluated(made, "lasting") == done + 20


@pytest.mark.slow
def test_a_cluster_that_runs_takes_a_task_of_ones_own(head: tuple[Machine, Path]) -> None:
    made, _ = head
    for name, text in readme_task().items():
        (made.folder / name).write_text(text)
    own = made.folder / "own.yaml"
    own.write_text(json.dumps(search("own", 10, "slow") | {"tasks": ["./squared_relu.py"]}))
    submit = ("triton-evolve", "submit", str(own), "--address", JOBS)
    code, output = made.run(*submit)
    assert code == 0, output
    assert evaluated(made, "own") == 10
    assert made.run(*submit, "--status")[1].startswith("job own-1: SUCCEEDED")
    assert "the budget of 10 evaluations is used" in made.run(*submit, "--logs")[1]
    code, output = made.run(*submit)  # nothing is left to do
    assert code == 0, output
    assert "job own-2: begun" in output
    assert evaluated(made, "own") == 10
    refused = made.run(*submit, RAY_AUTH_TOKEN="a" * 64)
    assert refused[0] == 2
    assert "refuses the token" in refused[1].splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_hosts_work_on_one_search(tmp_path_factory: pytest.TempPathFactory, evaluator_module: str) -> None:
    reason = launched_cluster.missing()
    if reason is not None:
        pytest.skip(reason)
    import evaluators_of_tests

    paths = str(Path(str(evaluators_of_tests.__file__)).parent)
    with machines(tmp_path_factory.mktemp("lan"), 3, paths) as (made, addresses):
        head = made[0]
        asked = search("three", 40, "slow")
        asked["cluster"] = {"device": "cpu", "evaluators": 3}
        path = head.cluster_file(asked, addresses[0], addresses[1:])
        assert head.run("ray", "get-auth-token", "--generate")[0] == 0
        code, output = head.run("ray", "up", "-y", str(path), timeout=280)
        assert code == 0, output
        deadline = time.monotonic() + 240
        while head.run(sys.executable, "-c", _NODES)[1].split()[-1:] != ["3"]:
            assert time.monotonic() < deadline, head.run("bash", "-c", "cat /tmp/ray/session_latest/logs/monitor.*")[1]
            time.sleep(1)
        code, output = head.run("ray", "submit", str(path), SCRIPT)
        assert code == 0, output
        assert evaluated(head, "three") == 40
        with open_store(str(head.head / "runs/three.sqlite")) as store:
            notes = " ".join(event.reason for event in store.events())
        assert all(address in notes for address in addresses), notes


_NODES = """
import os
os.environ["RAY_AUTH_MODE"] = "token"
import ray
ray.init(address="auto", log_to_driver=False)
print(sum(node["Alive"] for node in ray.nodes()))
"""


def readme_task() -> dict[str, str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- task: (\S+) -->\n```python\n(.*?)```", text, re.DOTALL))
