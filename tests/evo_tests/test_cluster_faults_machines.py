"""Machines of a cluster fail, leave, come back, lose their network or their disk under a search: it goes on, or resumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from evo.records import EventKind
from tests.evo_tests.faulty_runs import Fault, breaks, two_machines
from tests.evo_tests.machines import can_unshare
from tests.evo_tests.running_processes import alive, wait_until

pytestmark = pytest.mark.timeout(600)
namespaces = pytest.mark.skipif(not can_unshare(), reason="network namespaces need root, ip, unshare and nsenter")


@pytest.fixture
def fault(request: pytest.FixtureRequest) -> Fault:
    found: Fault = request.function.fault
    return found


@breaks(
    "a node dies (power off)",
    "what was under way there is done by others; a node that joins, the same one or another, gets evaluators",
    60,
)
def test_a_node_dies_and_another_one_joins(tmp_path: Path, fault: Fault) -> None:
    with two_machines(tmp_path, "brisk", 1000) as (machines, lost, search):
        with search.running():
            search.reach(4)
            lost.busy()
            search.broken()
            lost.power_off()
            search.recovers(fault)
            new = machines.join("c")
            wait_until(lambda: bool(new.titled("ray::EvaluatorActor")), "evaluator on the node that joined", 60)
            search.interrupt()
            search.finish(130)
        search.tells(r"cluster : node \S+ \(\S+\) joined", r"cluster : node \S+ \(\S+\) is gone", r"evaluator-\d+ on .* was lost")


@namespaces
@pytest.mark.slow
@breaks(
    "a node is drained (autoscaler, spot instance)", "its evaluators end after what they have in hand; nothing is done twice", 30
)
def test_a_node_is_drained(tmp_path: Path, fault: Fault) -> None:
    with two_machines(tmp_path, "brisk", 40) as (machines, leaving, search):
        with search.running():
            search.reach(10)
            node = machines.node_id(leaving)
            leaving.busy()
            search.broken()
            reason = ("--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=price", "--deadline-remaining-seconds=120")
            machines.head.run("ray", "drain-node", f"--address={machines.address}", f"--node-id={node}", *reason)
            wait_until(lambda: not leaving.titled("ray::EvaluatorActor"), "end of the evaluator there", 60)
            leaving.power_off()
            search.recovers(fault)
            search.finish()
        search.tells(r"cluster : node a .* is being drained", r"cluster : node a .* is gone")
        assert not search.events(EventKind.WORKER_LOST), "nothing was cut off"


@namespaces
@pytest.mark.slow
@breaks(
    "the head dies (power off), and with it driver, engine and Ray's control",
    "the other nodes end what they did; Ray is started anew, and the search resumes from its store",
    300,
    resumed=True,
)
def test_the_head_dies(tmp_path: Path, fault: Fault) -> None:
    with two_machines(tmp_path, "brisk", 40) as (machines, other, search):
        with search.running():
            search.reach(10)
            search.broken()
            machines.head.power_off()
        wait_until(lambda: not alive(other.pids_of_ray()), "end of Ray on the other node", 90)
        search.leaves_nothing()
        machines.start_head(2)
        machines.start_ray(other)
        with search.resumed():
            search.recovers(fault)
            search.finish()
        search.tells("resumed : session 2 of this run; the one before was cut off")


@namespaces
@pytest.mark.slow
@breaks(
    "a node is cut off from the network for a minute",
    "Ray gives it up, others do its work, and what it says later is refused; Ray started there anew joins the search",
    60,
)
def test_a_node_is_cut_off_for_a_minute(tmp_path: Path, fault: Fault) -> None:
    with two_machines(tmp_path, "brisk", 1000, evaluators=3) as (machines, lone, search):
        with search.running():
            search.reach(4)
            lone.busy()
            search.broken()
            lone.cut()
            search.recovers(fault)
            wait_until(lambda: search.since_broken >= 60, "end of the minute", 61)
            lone.heal()
            wait_until(lambda: not alive(lone.pids_of_ray()), "end of Ray on the node that was given up", 60)
            machines.start_ray(lone)
            wait_until(lambda: bool(lone.titled("ray::EvaluatorActor")), "evaluator on the node that is back", 60)
            search.interrupt()
            search.finish(130)
        search.tells(r"cluster : node a .* is gone", r"cluster : node a .* joined")


@namespaces
@pytest.mark.slow
@breaks("a node is cut off for two seconds", "nothing happens: what it has in hand arrives late", 30)
def test_a_node_is_cut_off_briefly(tmp_path: Path, fault: Fault) -> None:
    with two_machines(tmp_path, "brisk", 40) as (_, lone, search):
        with search.running():
            search.reach(4)
            lone.busy()
            search.broken()
            lone.cut()
            wait_until(lambda: search.since_broken >= 2, "end of the two seconds", 3)
            lone.heal()
            search.recovers(fault)
            search.finish()
        assert not search.events(EventKind.WORKER_LOST)
        assert not [happened for happened in search.events(EventKind.CLUSTER) if "lost" in happened or "gone" in happened]


@namespaces
@pytest.mark.slow
@breaks(
    "the disk for temporary files is full on one node",
    "its evaluator ends without a verdict and another one is started there; after five in a row without a result the place rests "
    "for ten minutes; no variant is blamed",
    60,
)
def test_a_disk_is_full(tmp_path: Path, fault: Fault) -> None:
    small = Path("/mnt/small")
    with two_machines(tmp_path, "writing", 40, tmpfs={small: "64m"}, TMPDIR=str(small)) as (_, full, search):
        with search.running():
            search.reach(4)
            full.busy()
            search.broken()
            full.run("sh", "-c", f"cat /dev/zero > {small}/fill || true")
            search.recovers(fault)
            search.finish()
        assert not search.events(EventKind.WORKER_LOST), "no variant is to blame"
        search.tells(
            r"cluster : evaluator-\d+ on a .* was lost \(DeviceError: this machine is short of something: .*No space left"
        )
