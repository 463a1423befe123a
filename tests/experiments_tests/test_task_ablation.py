"""The ablation's arms differ in what they say and in nothing else, and the page states what was measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from evo.config import read_config, write_config
from evo.registry import find_operators, operator_names
from evo.tasks.loading import load_task
from experiments.task_ablation import ARMS, TASKS, config_of, page


def test_arms_differ_in_operators_and_trials_alone(tmp_path: Path) -> None:
    configs = {arm: config_of(arm, TASKS, 80.0, 3, "gpu") for arm in ARMS}
    for arm, config in configs.items():
        write_config(config, tmp_path / f"{arm}.yaml")
        assert read_config(tmp_path / f"{arm}.yaml").operators == config.operators
        assert not [name for name in operator_names(config) if find_operators()[name].needs_model]
    rest = {
        config.model_copy(update={"name": "", "operators": (), "evaluation": configs["both"].evaluation}).to_text()
        for config in configs.values()
    }
    assert len(rest) == 1
    both, crossover = (set(configs[arm].operators or ()) for arm in ("both", "crossover"))
    assert crossover - both == {"exchange_parts"}
    assert set(configs["rewrites"].operators or ()) == both
    assert configs["tuner"].operators == ()
    untuned = configs["rewrites"].evaluation
    assert (untuned.tune_trials, untuned.deep_tune_trials, untuned.start_tune_trials) == (0, 0, 0)
    trials = ("tune_trials", "deep_tune_trials", "start_tune_trials")
    settings = [dataclasses.replace(config.evaluation, **dict.fromkeys(trials, 1)) for config in configs.values()]
    assert settings == settings[:1] * len(settings)


def test_the_tasks_are_ten_of_differing_kinds() -> None:
    assert len(set(TASKS)) == 10
    assert len({load_task(name).kind for name in TASKS}) >= 8


def test_the_page_has_a_column_for_each_arm_and_a_dash_where_nothing_passed() -> None:
    interval = {"point": 1.25, "low": 1.2, "high": 1.3}
    session = {"command": "c", "gpu": "G", "driver": "1", "torch": "2", "triton": "3", "python": "3", "cores": 2, "commit": "abc"}
    text = page(
        {
            "session": session,
            "gpu_s": 80.0,
            "arms": {arm: {"evaluations": 7, "gpu_s": 79.6, "wall_s": 100.2} for arm in ("tuner", "both")},
            "tasks": [{"task": "softmax", "speedup": {"both": interval}}],
            "overall": {"both": interval},
        }
    )
    assert "| softmax | – | 1.250 (≥ 1.200) |" in text
    assert "| GPU seconds | 80 | 80 |" in text
