"""What a search asks an autoscaler for goes as evaluators come, and with its driver, however that ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.evo_tests.running_processes import started, wait_until


def asked() -> dict[str, int]:
    """What autoscalers read: of which resource one is waited for, and how often."""
    import ray
    from ray.autoscaler.v2.sdk import get_cluster_status

    demands = get_cluster_status(ray.get_runtime_context().gcs_address).resource_demands
    found: Counter[str] = Counter()
    for each in (each for demand in demands.placement_group_demand for each in demand.bundles_by_count):
        ((name, amount),) = each.bundle.items()
        assert amount == 1
        found[name] += each.count
    return dict(found)


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_room_is_asked_for_as_long_as_it_is_missing() -> None:
    import ray

    from evo.cluster.wishes import Wishes

    gpus, cores = Wishes({"GPU": 1}), Wishes({"CPU": 1})
    gpus.ask(40)
    cores.ask(1)  # there is one
    wait_until(lambda: asked() == {"GPU": 40}, "wishes", 120)
    gpus.ask(3)
    wait_until(lambda: asked() == {"GPU": 3}, "fewer wishes", 120)
    gpus.ask(0)
    wait_until(lambda: not asked(), "end of the wishes", 120)
    cores.ask(0)
    wait_until(lambda: ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"], "the core that was there", 120)


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_nothing_is_asked_for_once_the_driver_was_killed(
    tmp_path: Path, simulated_file: Callable[..., Path], slow_evaluator: str
) -> None:
    import ray

    path, address = simulated_file(evaluations=100_000, evaluator=slow_evaluator), ray.get_runtime_context().gcs_address
    cores = int(ray.cluster_resources()["CPU"])
    path.write_text(path.read_text().replace("device: cpu", f"device: cpu, evaluators: {cores + 7}"))
    with started(tmp_path, "run", str(path), "--no-export", "--address", address) as driver:
        wait_until(lambda: asked() == {"CPU": 7} or driver.poll() is not None, "wishes", 120)
        assert driver.poll() is None, (tmp_path / "out.txt").read_text()
        driver.kill()
        driver.wait()
        wait_until(lambda: not asked(), "end of the wishes", 60)
