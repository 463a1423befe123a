"""The configuration of a run: every key, its default and what is allowed, in one typed place; YAML only overrides.

The sections `search`, `budget` and `evaluation` are the settings dataclasses of those rooms, so a default is never written twice.
A file is the configuration itself, a Ray cluster-launcher file that carries it under ``metadata.triton_evolve``, or Kubernetes
manifests with a ConfigMap that does under ``data.triton_evolve``, as text.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evo.errors import ConfigError
from evo.evaluation.settings import EvaluationSettings
from evo.search.settings import Budget, SearchSettings
from operators.models.base import Form

CLUSTER_KEY = ("metadata", "triton_evolve")
"""Where a Ray cluster-launcher file carries the configuration."""

MANIFEST_KEY = "triton_evolve"
"""Where a ConfigMap carries it."""

_OF_A_LAUNCHER = ("cluster_name", "provider")
"""Keys that each of Ray's cluster-launcher files has, and no configuration."""

_OF_THE_RUN = {key: f"give it once, at the top: {key}" for key in ("target", "seed")} | {"cores": "each evaluator finds it out"}
"""Keys of the section `evaluation` that evaluators are given otherwise; and how."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSection(_Section):
    """One language model that operators may ask.

    Attributes:
        provider: Which client of `operators.models` talks to it.
        name: Model name as the provider knows it.
        label: Names it in the store and in reports, where several have one name (say, with two temperatures); None: its name.
        max_tokens: Longest reply, tokens.
        requests_per_minute, tokens_per_minute: What its endpoint allows; kept over all proposers of a run. None: no limit.
        base_url: Another endpoint than the provider's own.
        grammar: What its replies are held to, where its server can: ``none``, any ``module``, or a ``skeleton``, which is the first
            parent with free bodies of kernels. Several are arms of their own between which the bandit of models chooses.
        corrections: Further turns about a reply that cannot be used.
        options: Further arguments of the client; it refuses those it does not know.
    """

    provider: str = "anthropic"
    name: str
    label: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] = 16_000
    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    base_url: str | None = None
    grammar: Annotated[tuple[Form, ...], Field(min_length=1)] = ("none",)
    corrections: Annotated[int, Field(ge=0, le=10)] = 1
    options: dict[str, bool | int | float | str] = {}

    @property
    def key(self) -> str:
        """By which requests name it."""
        return self.label or self.name

    @property
    def arms(self) -> dict[str, Form]:
        """Label of each arm → what it is held to; one form alone needs no name of its own."""
        if len(self.grammar) == 1:
            return {self.key: self.grammar[0]}
        return {self.key if form == "none" else f"{self.key} ({form})": form for form in self.grammar}


class ClusterSection(_Section):
    """Where and how wide a run works.

    Attributes:
        address: A running Ray cluster (``auto`` or ``host:port``), on a host of which the run is started; None starts a local one.
        device: ``gpu``: one evaluator per GPU. ``cpu``: interpreted evaluators with modelled latencies. ``auto``: GPUs if there are any.
        evaluators: How many; ``auto``: one per GPU, or without GPUs one per core but one; also on nodes that join later.
        device_model: The device model to optimise for where the cluster has several, as results name it (``NVIDIA H200``); None: that of
            most GPUs. Evaluators of other models are not used.
        proposers: How many processes run operators.
        requests_in_hand: Requests that each of them works on at once; more for batches, with a larger `search.pending_limit`.
    """

    address: str | None = None
    device: Literal["auto", "gpu", "cpu"] = "auto"
    evaluators: Annotated[
        Literal["auto"] | Annotated[int, Field(ge=1, le=10_000)], Field(description="auto, or a whole number from 1 to 10000")
    ] = "auto"
    device_model: str | None = None
    proposers: Annotated[int, Field(ge=1, le=1_000)] = 1
    requests_in_hand: Annotated[int, Field(ge=1, le=10_000)] = 8


class RunConfig(_Section):
    """Everything that decides how a run goes.

    Attributes:
        name: Of the run; names its store and its exported front.
        seed: Of all randomness.
        tasks: Task names, or paths of task files (relative to the configuration file).
        target: ``cuda:90``, ``hip:gfx942`` …; ``auto``: that of the GPU found, ``cuda:90`` without one.
        store: Path (relative to the current folder) or SQLAlchemy URL; None means ``runs/NAME.sqlite``.
        operators: Operator names; None means every rule-based one, and the model-driven ones too where `models` is given. An empty list:
            starting kernels are tuned, and nothing else.
        models: See `ModelSection`.
        library: Earlier population stores, and folders of kernel modules (paths relative to the configuration file), from which models
            are shown similar good kernels; what operators achieved in those runs is where the choice between them begins.
        evaluator: A registered evaluator (``kernels``, ``simulated``) or ``module:function`` with the signature of
            `evo.evaluation.building.build_evaluator`.
        seeds: Task name → starting kernels that torch.compile gave where a task has none; filled in when a run begins.
        accept_weak_tasks: Search tasks that a known cheat passes all the same; see `triton-evolve doctor --task`.
        search, budget, evaluation, cluster: See the classes.
    """

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="letters, digits, '.', '_' and '-', a letter or digit first"),
    ]
    seed: Annotated[int, Field(ge=0)] = 0
    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    target: Annotated[
        str,
        Field(pattern=r"^(auto|cuda:\d{2,3}|hip:gfx[0-9a-f]+)$", description="auto, cuda:80, cuda:90, cuda:100, hip:gfx942 …"),
    ] = "auto"
    store: str | None = None
    operators: tuple[str, ...] | None = None
    models: tuple[ModelSection, ...] = ()
    library: tuple[str, ...] = ()
    evaluator: str = "kernels"
    seeds: Mapping[str, tuple[str, ...]] = {}
    accept_weak_tasks: bool = False
    search: SearchSettings = SearchSettings()
    budget: Budget = Budget()
    evaluation: EvaluationSettings = EvaluationSettings()
    cluster: ClusterSection = ClusterSection()

    @property
    def model_labels(self) -> tuple[str, ...]:
        """By which requests name models, in order."""
        return tuple(label for section in self.models for label in section.arms)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Models with an endpoint of their own, as ``NAME at URL``: a store brings them along, and keys go there."""
        return tuple(f"{section.name} at {section.base_url}" for section in self.models if section.base_url)

    def to_text(self) -> str:
        """JSON text that `from_text` reads back."""
        return self.model_dump_json()

    @classmethod
    def from_text(cls, text: str, where: str) -> RunConfig:
        """Reads the configuration that a population store recorded; the numbers of pairs of runs from before there were races are one.

        Raises:
            ConfigError: Another version of triton-evolve wrote it and a key is no longer known.
        """
        document = json.loads(text)
        evaluation = document.get("evaluation", {})
        if counts := {evaluation.pop(key) for key in ("pairs", "verify_pairs") if key in evaluation}:
            evaluation.setdefault("race", sorted(counts))
        return _validated(document, where, "")


def read_config(path: Path) -> RunConfig:
    """Reads a configuration file; task paths in it become absolute.

    Raises:
        ConfigError: The file is missing, is no YAML, has an unknown key or a wrong value, or a place of its library is missing; says
            where and what is allowed.
    """
    document, prefix = _read_yaml(path), ""
    if "apiVersion" in document:
        prefix = f"data.{MANIFEST_KEY}."
        text = document["data"][MANIFEST_KEY]
        if not isinstance(text, str):
            action = f"a ConfigMap carries text: write `{MANIFEST_KEY}: |` and the configuration below it, indented"
            raise ConfigError(f"{path}: {prefix[:-1]}", given=type(text).__name__, action=action)
        document = _parsed(text, f"{path}: {prefix[:-1]}")[0]
    elif any(key in document for key in (CLUSTER_KEY[0], *_OF_A_LAUNCHER)):
        prefix = ".".join(CLUSTER_KEY) + "."
        metadata = document.get(CLUSTER_KEY[0])
        if not isinstance(metadata, dict) or not isinstance(metadata.get(CLUSTER_KEY[1]), dict):
            raise ConfigError(
                f"{path}: {prefix[:-1]}", action="a cluster file carries the search configuration there; it is missing"
            )
        document = metadata[CLUSTER_KEY[1]]
    for key, action in _OF_THE_RUN.items():
        if isinstance(document.get("evaluation"), dict) and key in document["evaluation"]:
            raise ConfigError(f"{path}: {prefix}evaluation.{key}", action=action)
    config = _validated(document, str(path), prefix)
    base = path.resolve().parent
    tasks = tuple(_absolute(task, base) for task in config.tasks)
    library = tuple(place if "://" in place else str((base / Path(place).expanduser()).resolve()) for place in config.library)
    for position, place in enumerate(library):
        if "://" not in place and not Path(place).exists():
            raise ConfigError(f"{path}: {prefix}library.{position}", given=place, action="no such population store or folder")
    return config.model_copy(update={"tasks": tasks, "library": library})


def write_config(config: RunConfig, path: Path) -> None:
    """Writes a configuration as a file that `read_config` reads back; paths stay as they are."""
    document = config.model_dump(mode="json", exclude={"evaluation": set(_OF_THE_RUN)})
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _absolute(reference: str, base: Path) -> str:
    if reference.endswith(".py") or "/" in reference:
        return str((base / Path(reference).expanduser()).resolve())
    return reference


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, which YAML forbids and PyYAML lets pass."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", key_node.start_mark)
            seen.add(key if isinstance(key, str) else id(key_node))
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(str(path), action="no such file; configs/quickstart.yaml is a complete example") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), action=f"cannot be read: {error}") from None
    documents = _parsed(text, str(path))
    if len(documents) == 1 and "apiVersion" not in documents[0]:
        return documents[0]
    maps = [item for item in documents if item.get("kind") == "ConfigMap" and MANIFEST_KEY in _mapping(item.get("data"))]
    if len(maps) != 1:
        action = f"Kubernetes manifests carry the search configuration as text in data.{MANIFEST_KEY} of one ConfigMap"
        raise ConfigError(str(path), given=f"{len(maps)} of them in {len(documents)} documents", action=action)
    return maps[0]


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _parsed(text: str, where: str) -> list[dict[str, Any]]:
    try:
        documents = list(yaml.load_all(text, _Loader)) or [None]
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{where}{line}", action=f"not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(where, action=f"not valid YAML: {' '.join(str(error).split())}") from None
    for document in documents:
        if not isinstance(document, dict):
            raise ConfigError(where, given=type(document).__name__, allowed="a mapping of keys to values")
    return documents


def _validated(document: Mapping[str, Any], where: str, prefix: str) -> RunConfig:
    try:
        return RunConfig.model_validate(document)
    except ValidationError as error:
        # One line: the first mistake. An unknown key comes before the missing one that it was probably meant to be.
        found = sorted(error.errors(include_url=False), key=lambda item: item["type"] not in _UNKNOWN)
        raise _config_error(dict(found[0]), where, prefix) from None


_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def _config_error(error: dict[str, Any], where: str, prefix: str) -> ConfigError:
    path, owner, field_type = _resolve(error["loc"])
    place = f"{where}: {prefix}{'.'.join(path)}"
    known = sorted(_fields(owner))
    if error["type"] in _UNKNOWN:
        near = difflib.get_close_matches(path[-1], known, n=1)
        return ConfigError(place, given="an unknown key", allowed=known, action=f"did you mean {near[0]}?" if near else "")
    if error["type"] in ("missing", "missing_argument"):
        return ConfigError(place, action="this key must be given")
    given = error["input"]
    if _fields(field_type):
        if isinstance(given, dict):  # refused by the section's own constructor, whose text may begin with the key
            text = str(error.get("ctx", {}).get("error", error["msg"]))
            return ConfigError(f"{place}.{text}" if text.split(":")[0] in _fields(field_type) else f"{place}: {text}")
        return ConfigError(place, given=given, allowed=sorted(_fields(field_type)))
    return ConfigError(place, given=str(given), allowed=_expected(error, path[-1], owner, field_type))


def _expected(error: dict[str, Any], key: str, owner: Any, field_type: Any) -> list[str]:
    field = owner.model_fields.get(key) if issubclass(owner, BaseModel) else None
    if field is not None and field.description:
        return [field.description]
    choices = [str(item) for part in _parts(field_type) for item in typing.get_args(part) if typing.get_origin(part) is Literal]
    text = re.sub(r"^(Input|Value|String|Tuple) should (be|have) (a valid )?", "", error["msg"]).replace("tuple", "list")
    return choices or [text.split(",")[0]]


def _resolve(loc: tuple[int | str, ...]) -> tuple[list[str], Any, Any]:
    """The key path without pydantic's union tags, the class that owns the last key, and that key's type."""
    path: list[str] = []
    owner: Any = RunConfig
    current: Any = RunConfig
    for part in loc:
        fields = _fields(current)
        if fields:
            owner, current = current, fields.get(str(part), None)
            path.append(str(part))
        elif isinstance(part, int):
            current = next((item for item in typing.get_args(_parts(current)[0]) if item is not Ellipsis), None)
            path.append(str(part))
        elif typing.get_origin(current) is dict:
            path.append(str(part))
            current = None
    return path, owner, current


def _parts(annotation: Any) -> list[Any]:
    """The members of a union, or the annotation alone; `Annotated` is looked through and None left out."""
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [item for part in typing.get_args(annotation) if part is not type(None) for item in _parts(part)]
    return [annotation]


def _fields(cls: Any) -> dict[str, Any]:
    if isinstance(cls, type) and issubclass(cls, BaseModel):
        names = list(cls.model_fields)
    elif isinstance(cls, type) and dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
    else:
        return {}
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: hints[name] for name in names}
