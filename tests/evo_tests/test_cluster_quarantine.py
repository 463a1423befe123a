"""A device that fails its health check twice is named and left alone; the other devices finish the run."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from evo.cluster.running import Driver
from evo.cluster.session import Capacity
from evo.cluster.spec import RunSpec
from evo.commands.search import make_header
from evo.config import RunConfig
from evo.errors import DeviceError
from evo.main import main
from evo.records import Event, EventKind, Spent
from evo.reporting.status import StatusReader, render_status
from population_store.opening import open_store
from tests.evo_tests.journal_check import check_journal

pytestmark = pytest.mark.usefixtures("local_ray")


def drive(config: RunConfig, store: Path) -> str:
    from evo.cluster.setup import load_tasks

    spec = RunSpec(config, str(store), make_header(config, load_tasks(config)), "cpu:cuda:90")
    return Driver(spec, Capacity(cpus=2, gpus=0, local=True), lambda progress: None, lambda: None).run()


def test_a_bad_device_is_left_alone_and_the_others_go_on(
    tmp_path: Path, simulated_config: Callable[..., RunConfig], evaluator_module: str, own_seed: int
) -> None:
    config = simulated_config(seed=own_seed, evaluations=12)
    cluster = config.cluster.model_copy(update={"evaluators": 2})
    config = config.model_copy(update={"evaluator": f"{evaluator_module}:one_bad", "cluster": cluster})
    store = tmp_path / "run.sqlite"
    assert "12 evaluations" in drive(config, store)
    with open_store(str(store)) as opened:
        assert check_journal(opened, finished=True) == []
        (event,) = [event for event in opened.events() if event.kind is EventKind.QUARANTINED]
        assert not [event for event in opened.events() if event.kind is EventKind.WORKER_LOST], "no variant is to blame"
        text = io.StringIO()
        Console(file=text, width=300).print(render_status(StatusReader(opened).look()))
    assert event.reason.startswith("evaluator-")
    assert "GPU 1 (NVIDIA H200, GPU-5a1d)" in event.reason
    assert f"quarantined : {event.reason}" in text.getvalue()


@pytest.mark.slow
def test_a_run_without_a_good_device_ends_and_says_which_and_why(
    tmp_path: Path, simulated_config: Callable[..., RunConfig], evaluator_module: str
) -> None:
    config = simulated_config().model_copy(update={"evaluator": f"{evaluator_module}:all_bad"})
    with pytest.raises(DeviceError, match=r"in quarantine: GPU 1 .*7 words of memory"):
        drive(config, tmp_path / "run.sqlite")


def test_who_resumes_a_run_is_told_which_devices_were_in_quarantine(
    tmp_path: Path, simulated_config: Callable[..., RunConfig], capfd: pytest.CaptureFixture[str]
) -> None:
    import ray

    from evo.cluster.setup import load_tasks

    if ray.cluster_resources().get("GPU"):
        pytest.skip("this machine has one, so the run would go on")
    config = simulated_config()
    config = config.model_copy(update={"cluster": config.cluster.model_copy(update={"device": "gpu"})})
    store = tmp_path / "run.sqlite"
    with open_store(str(store), write=True, header=make_header(config, load_tasks(config))) as opened:
        opened.record(
            [Event(EventKind.QUARANTINED, "", 0, "", "", "evaluator-0: GPU 1 fails its health check twice")] * 2, Spent()
        )
    with pytest.raises(SystemExit):
        main(["resume", str(store)])
    out, err = capfd.readouterr()
    assert out.count("used again only if it passes its health check now: evaluator-0: GPU 1 fails") == 1
    assert "cluster.device" in err, "it got as far as to look for a GPU"
