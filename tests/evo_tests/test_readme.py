"""What the README shows is true: its task loads and is traced, its table of keys is that of the configuration, its links lead somewhere."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from evo.config import RunConfig, read_config
from evo.knobs import read_knobs
from evo.main import app
from evo.tasks.loading import load_task
from evo.tracing.plan import Launch, LaunchPlan
from evo.tracing.tracer import Tracer

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OF_THE_RUN = ("evaluation.target", "evaluation.seed", "evaluation.cores")
"""Set at the top of a configuration or where an evaluator is started, and refused there."""


@pytest.fixture
def readme_task(tmp_path: Path) -> Path:
    """The task file that the README shows, with its kernel beside it."""
    files = dict(re.findall(r"<!-- task: (\S+) -->\n```python\n(.*?)```", README, re.DOTALL))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path / "squared_relu.py"


def test_the_task_of_the_readme_loads_and_its_kernel_is_traced(readme_task: Path) -> None:
    task = load_task(str(readme_task))
    source = (readme_task.parent / "squared_relu_kernel.py").read_text()
    tracer = Tracer("cuda:90")
    try:
        plan = tracer.trace(source, task, task.training_cases[0], read_knobs(source).default)
    finally:
        tracer.close()
    assert isinstance(plan, LaunchPlan), plan
    assert [type(step) for step in plan.steps["forward"]].count(Launch) == 1


def test_the_configuration_that_the_readme_makes_for_it_is_accepted(readme_task: Path) -> None:
    (readme_task.parent / "configs").mkdir()
    expressions = re.search(r"sed '(.*)' configs/quickstart.yaml", README)
    assert expressions is not None
    text = (ROOT / "configs" / "quickstart.yaml").read_text()
    for expression in expressions[1].split("; "):
        old, new = expression[2:-1].split(expression[1])
        text, count = re.subn(old, new, text, flags=re.MULTILINE)
        assert count == 1, expression
    path = readme_task.parent / "configs" / "squared_relu.yaml"
    path.write_text(text)
    assert read_config(path).tasks == (str(readme_task),)


def test_every_key_of_the_configuration_is_in_the_table_with_its_default() -> None:
    section = README.split("<!-- configuration -->")[1].split("<!-- /configuration -->")[0]
    shown = dict(re.findall(r"^\| `([^`]+)` \| (\S.*?) \|", section, re.MULTILINE))
    known = {key: default for key, default in defaults(RunConfig, "") if key not in OF_THE_RUN}
    assert shown == known


def defaults(section: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Every key below a section of the configuration, with its default as the README writes it."""
    for name, hint in typing.get_type_hints(section).items():
        if not is_key(section, name):
            continue
        item = next((part for part in typing.get_args(hint) if is_section(part)), None)
        if is_section(hint):
            yield from defaults(hint, f"{prefix}{name}.")
        elif item is not None:
            yield from defaults(item, f"{prefix}{name}[].")
        else:
            yield prefix + name, written(section, name)


def is_section(value: Any) -> bool:
    return isinstance(value, type) and (issubclass(value, BaseModel) or dataclasses.is_dataclass(value))


def is_key(section: Any, name: str) -> bool:
    return name in section.model_fields if issubclass(section, BaseModel) else name in section.__dataclass_fields__


def written(section: Any, name: str) -> str:
    if issubclass(section, BaseModel):
        field = section.model_fields[name]
        if field.is_required():
            return "—"
        value = field.default
    else:
        value = section.__dataclass_fields__[name].default
    return "none" if value is None else f"`{value}`"


@pytest.mark.parametrize("command", [command.name or command.callback.__name__ for command in app.registered_commands])
def test_every_command_is_described_with_options_that_it_has(command: str) -> None:
    rows = re.findall(rf"^\| `triton-evolve {command}\b[^|]*\|[^|]*\|$", README, re.MULTILINE)
    assert len(rows) == 1
    answer = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    for option in re.findall(r"--[a-z-]+", rows[0]):
        assert option in answer.output


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md") if path.stem != "operators")]
)
def test_links_and_paths_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\[[^\]\n]+\]\((?!https?:)([\w/.-]+)[^)]*\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    rooms = r"`((?:evo|operators|population_store|experiments|tests|configs)/[\w/.*]*)`"
    for path in links:
        assert (ROOT / page).parent.joinpath(path).exists(), path
    for pattern in re.findall(rooms, text):
        if not re.search(r"\b[A-Z]+\.(py|md)$", pattern):  # NAME.py stands for any
            assert list(ROOT.glob(pattern.rstrip("/"))), pattern
