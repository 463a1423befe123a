"""What tests of the run share: one local Ray for all of them, and a small configuration."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evo.config import RunConfig, read_config

SIMULATED = """
name: {name}
seed: {seed}
tasks: [softmax]
target: cuda:90
evaluator: {evaluator}
search: {{islands: 2, migration_interval: 5, lease_s: 60}}
budget: {{evaluations: {evaluations}}}
evaluation: {{tune_trials: 0}}
cluster: {{device: cpu}}
"""


EVALUATORS = '''
import os
import tempfile
import time
from pathlib import Path

from evo.errors import BadDeviceError, DeviceError
from evo.evaluation.base import Evaluator
from evo.evaluation.simulated import SimulatedEvaluator
from evo.records import Evaluation, Stage, Status


def first_of(seed):
    try:
        Path(tempfile.gettempdir(), f"first-evaluator-{seed}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def slow(tasks, settings, device):
    """An evaluator that takes time, so that it can be killed in the middle."""
    return SimulatedEvaluator(settings.seed, duration_s=0.15, duration_sigma=0.2)


class Stuck(SimulatedEvaluator):
    begun = 0

    def evaluate(self, item, claim):
        self.begun += 1
        if self.begun > 3:
            time.sleep(600)
        return super().evaluate(item, claim)


def stuck_once(tasks, settings, device):
    """The first one made in a run (of that seed) hangs until it is killed; whoever is made later does not."""
    return Stuck(settings.seed) if first_of(settings.seed) else SimulatedEvaluator(settings.seed)


class Broken(SimulatedEvaluator):
    def evaluate(self, item, claim):
        raise DeviceError("the health kernel gave wrong values")


def broken(tasks, settings, device):
    """A device that does not work."""
    return Broken(settings.seed)


class Dying(SimulatedEvaluator):
    def evaluate(self, item, claim):
        raise BadDeviceError("GPU 1 (NVIDIA H200, GPU-5a1d) fails its health check twice: 7 words of memory do not keep the pattern")


def one_bad(tasks, settings, device):
    """The first one made in a run (of that seed) has a bad device; whoever is made later has a good one."""
    return Dying(settings.seed) if first_of(settings.seed) else SimulatedEvaluator(settings.seed, duration_s=0.05, duration_sigma=0.2)


def all_bad(tasks, settings, device):
    """Every device is bad."""
    return Dying(settings.seed)


class Strict(SimulatedEvaluator):
    def evaluate(self, item, claim):
        return Evaluation(item.variant.variant_id, Status.WRONG_VALUES, Stage.GATE, self.device, message="row 3", signature="v")


def strict(tasks, settings, device):
    """A judge that no kernel passes."""
    return Strict(settings.seed)


class WithoutKeys(SimulatedEvaluator):
    def evaluate(self, item, claim):
        keys = [name for name in os.environ if name.endswith("_API_KEY")]
        if keys:
            raise DeviceError(f"an evaluator has {', '.join(keys)}")
        return super().evaluate(item, claim)


def without_keys(tasks, settings, device):
    """One that looks for keys of models in its environment."""
    return WithoutKeys(settings.seed)
'''


@pytest.fixture(scope="session")
def evaluator_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A module of evaluators that this process and every Ray worker it starts can import, as a user's own would be."""
    folder = tmp_path_factory.mktemp("evaluators")
    (folder / "evaluators_of_tests.py").write_text(EVALUATORS)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(Path(__file__).resolve().parents[2]), before or ""])
    sys.path.insert(0, str(folder))
    yield "evaluators_of_tests"
    sys.path.remove(str(folder))
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture
def own_seed() -> Iterator[int]:
    """Of a run whose first evaluator differs from later ones."""
    yield os.getpid()
    Path(tempfile.gettempdir(), f"first-evaluator-{os.getpid()}").unlink(missing_ok=True)


@pytest.fixture
def slow_evaluator(evaluator_module: str) -> str:
    """Takes 0.15 s per variant."""
    return f"{evaluator_module}:slow"


@pytest.fixture
def broken_device(evaluator_module: str) -> str:
    """Raises DeviceError at each variant."""
    return f"{evaluator_module}:broken"


@pytest.fixture
def failing_start(evaluator_module: str) -> str:
    """Finds every kernel wrong."""
    return f"{evaluator_module}:strict"


@pytest.fixture(scope="session")
def local_ray(evaluator_module: str) -> Iterator[None]:
    """A Ray that tests in this process share; starting one takes seconds."""
    from evo.cluster.session import ray_session
    from evo.config import ClusterSection

    with ray_session(ClusterSection()):
        yield


@pytest.fixture
def simulated_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a configuration that evaluates by simulation."""

    def write(*, name: str = "simulated", seed: int = 0, evaluations: int = 30, evaluator: str = "simulated") -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(SIMULATED.format(name=name, seed=seed, evaluations=evaluations, evaluator=evaluator))
        return path

    return write


@pytest.fixture
def simulated_config(simulated_file: Callable[..., Path]) -> Callable[..., RunConfig]:
    """The same, read."""
    return lambda **given: read_config(simulated_file(**given))
