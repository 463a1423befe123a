"""Configuration files: what is accepted, and what a person is told about a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evo.config import RunConfig, read_config
from evo.errors import ConfigError, InputError
from evo.registry import evaluator_factory, find_operators, operator_names

ROOT = Path(__file__).resolve().parents[2]
MINIMAL = "name: x\ntasks: [softmax]\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_config(write(folder, text))
    message = str(caught.value)
    assert "run.yaml" in message
    assert "\n" not in message
    return message


def test_only_name_and_tasks_are_needed_and_defaults_are_those_of_the_rooms(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, MINIMAL))
    assert config == RunConfig(name="x", tasks=("softmax",))
    assert config.models == ()
    assert config.target == "auto"


@pytest.mark.parametrize("name", ["quickstart.yaml", "evolve.yaml", "local.yaml"])
def test_the_shipped_files_are_valid_and_survive_the_store(name: str) -> None:
    config = read_config(ROOT / "configs" / name)
    assert RunConfig.from_text(config.to_text(), "a store") == config


def test_runs_from_before_there_were_races_can_be_resumed() -> None:
    document = json.loads(RunConfig(name="x", tasks=("softmax",)).to_text())
    del document["evaluation"]["race"], document["evaluation"]["deep_tune_trials"], document["accept_weak_tasks"]
    document["evaluation"] |= {"pairs": 16, "verify_pairs": 64}
    assert RunConfig.from_text(json.dumps(document), "a store").evaluation.race == (16, 64)


def test_the_shipped_cluster_file_is_one_that_ray_accepts() -> None:
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config

    document = yaml.safe_load((ROOT / "configs" / "evolve.yaml").read_text())
    validate_config(prepare_config(document))
    assert read_config(ROOT / "configs" / "evolve.yaml").tasks == tuple(document["metadata"]["triton_evolve"]["tasks"])


def test_task_paths_are_relative_to_the_file_and_names_stay_names(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, "name: x\ntasks: [softmax, tasks/mine.py, ../other.py]\n"))
    assert config.tasks == ("softmax", str(tmp_path / "tasks" / "mine.py"), str(tmp_path.parent / "other.py"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\ntaks: [softmax]\n", ["taks", "unknown key", "budget, cluster", "did you mean tasks?"]),
        (MINIMAL + "search: {island: 3}\n", ["search.island", "unknown key", "did you mean islands?"]),
        (MINIMAL + "search: {islands: 0}\n", ["search.islands", "given 0", "at least 1"]),
        (MINIMAL + "search: {islands: many}\n", ["search.islands", "given 'many'", "integer"]),
        (MINIMAL + "search: {selection: best}\n", ["search.selection", "'best'", "tournament, map_elites"]),
        (MINIMAL + "search: 3\n", ["search", "given 3", "bandit_floor"]),
        (MINIMAL + "budget: {evaluations: 0}\n", ["budget.evaluations", "given 0", "at least 1"]),
        (MINIMAL + "cluster: {device: tpu}\n", ["cluster.device", "'tpu'", "auto, gpu, cpu"]),
        (MINIMAL + "cluster: {evaluators: -1}\n", ["cluster.evaluators", "'-1'", "from 1 to 10000"]),
        (MINIMAL + "target: h100\n", ["target", "'h100'", "cuda:90"]),
        (MINIMAL + "models: [{nme: a}]\n", ["models.0.nme", "unknown key", "did you mean name?"]),
        (MINIMAL + "models: [{provider: a}]\n", ["models.0.name", "must be given"]),
        (MINIMAL + "name: y\n", ["run.yaml:3", "'name' is given twice"]),
        ("name: x\n", ["tasks", "must be given"]),
        ("name: x\ntasks: []\n", ["tasks", "at least 1"]),
        ("name: x y\ntasks: [softmax]\n", ["name", "'x y'", "letters"]),
        ("a: [\n", ["not valid YAML"]),
        ("- 1\n", ["a mapping"]),
        ("metadata: {}\n", ["metadata.triton_evolve", "missing"]),
        ("metadata: {triton_evolve: {nam: 1}}\n", ["metadata.triton_evolve.nam", "did you mean name?"]),
    ],
)
def test_a_mistake_is_named_with_its_place_and_what_is_allowed(tmp_path: Path, text: str, said: list[str]) -> None:
    message = refusal(tmp_path, text)
    for part in said:
        assert part in message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml; no such file"):
        read_config(tmp_path / "absent.yaml")


def test_every_operator_is_found_by_its_own_name() -> None:
    known = find_operators()
    assert known
    assert all(cls.name == name for name, cls in known.items())
    names = operator_names(RunConfig(name="x", tasks=("softmax",)))
    assert names == tuple(name for name, cls in known.items() if not cls.needs_model)


def test_an_unknown_operator_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        operator_names(RunConfig(name="x", tasks=("softmax",), operators=("magic",)))
    assert "operators.0; given 'magic'" in str(caught.value)
    assert next(iter(find_operators())) in str(caught.value)


def test_an_operator_that_asks_a_model_is_refused_without_one() -> None:
    needy = [name for name, cls in find_operators().items() if cls.needs_model]
    for name in needy:
        with pytest.raises(ConfigError, match="language model"):
            operator_names(RunConfig(name="x", tasks=("softmax",), operators=(name,)))


@pytest.mark.parametrize("name", ["magic", "evo.nowhere:build", "evo.errors:absent"])
def test_an_unknown_evaluator_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InputError, match="kernels, simulated, module:function"):
        evaluator_factory(name)


def test_forms_of_grammar_are_arms_of_their_own(tmp_path: Path) -> None:
    text = "name: x\ntasks: [softmax]\nmodels:\n  - {name: a, label: own, grammar: [none, module, skeleton], corrections: 3}\n"
    path = tmp_path / "x.yaml"
    path.write_text(text + "  - {name: b, grammar: [module]}\n  - {name: c}\n")
    config = read_config(path)
    assert config.model_labels == ("own", "own (module)", "own (skeleton)", "b", "c")
    assert config.models[0].arms["own (skeleton)"] == "skeleton"
    assert config.models[0].corrections == 3
    for wrong in ("[kernel]", "[]", "none"):
        path.write_text(text.replace("[none, module, skeleton]", wrong))
        with pytest.raises(ConfigError, match=r"models\.0\.grammar"):
            read_config(path)
    from evo.cluster.setup import build_operators, check_models

    path.write_text(text.replace("none, module", "module, module"))
    with pytest.raises(ConfigError, match="name each form once"):
        check_models(read_config(path))
    path.write_text(
        "name: x\ntasks: [softmax]\nmodels:\n  - {provider: openai, name: a, base_url: 'http://h', grammar: [module]}\n"
    )
    with pytest.raises(ConfigError, match=r"options\.server"):
        build_operators(read_config(path))
