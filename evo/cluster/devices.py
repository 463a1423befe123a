"""Decides what evaluators run on, and which target kernels are compiled for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from evo.cluster.nodes import Node, live_nodes
from evo.cluster.session import Capacity
from evo.cluster.spec import RunSpec
from evo.cluster.wishes import Wishes
from evo.config import RunConfig
from evo.errors import ConfigError, DeviceError

MODELLED_TARGET = "cuda:90"
"""The target that is modelled where there is no GPU and none is named."""

JOIN_S = 600.0
"""How long a GPU is waited for on a cluster that has none yet: nodes of a new cluster take minutes to come up."""

PROBE_S = 180.0
"""How long one GPU has to say what it is; the time to import torch from a slow disk is in it."""


class Chosen(NamedTuple):
    """What evaluators of a run use.

    Attributes:
        device: ``gpu``, or ``cpu:TARGET``.
        target: Kernels are compiled for it.
        model: The GPUs' model; None without GPUs, where there is one for each target.
    """

    device: str
    target: str
    model: str | None


def resolve_device(config: RunConfig, capacity: Capacity, interrupted: Callable[[], object] = lambda: None) -> Chosen:
    """Decides it, and waits for a GPU where one is asked for and the cluster's nodes with GPUs have yet to join.

    Args:
        config: The run.
        capacity: Of the cluster.
        interrupted: Polled; once it returns something, nothing is waited for.

    Raises:
        ConfigError: A GPU is asked for and there is none, or it is of another kind than the target.
    """
    wanted = config.cluster.device
    if wanted == "gpu" and capacity.gpus == 0 and config.cluster.address is not None:
        capacity = _joined_gpus(capacity, interrupted)
    if wanted == "gpu" and capacity.gpus == 0:
        action = "this Ray has no GPU: check nvidia-smi, or join a cluster with --address"
        raise ConfigError("cluster.device", given="gpu", allowed="cpu or auto here", action=action)
    if wanted == "cpu" or capacity.gpus == 0:
        target = MODELLED_TARGET if config.target == "auto" else config.target
        return Chosen(f"cpu:{target}", target, config.cluster.device_model)
    model, found = _chosen_gpu(config.cluster.device_model)
    if config.target not in ("auto", found):
        action = "its kernels cannot run on the GPU that was found: use auto, or device: cpu for modelled estimates"
        raise ConfigError("target", given=config.target, allowed=["auto", found], action=action)
    return Chosen("gpu", found, model)


def _joined_gpus(capacity: Capacity, interrupted: Callable[[], object]) -> Capacity:
    """Waits for a node with a GPU, and asks the autoscaler for one."""
    wishes = Wishes({"GPU": 1})
    wishes.ask(1)
    ends = time.monotonic() + JOIN_S
    while (gpus := sum(node.gpus for node in live_nodes())) == 0 and time.monotonic() < ends and not interrupted():
        time.sleep(1.0)
    wishes.ask(0)
    return replace(capacity, gpus=gpus)


def _chosen_gpu(wanted: str | None) -> tuple[str, str]:
    """Model and target of the GPUs to use: those of the wanted model, or else of the most frequent one. One of each kind is asked.

    Raises:
        ConfigError: No GPU is of the wanted model.
        DeviceError: None answers.
    """
    counts: Counter[str] = Counter()
    some: dict[str, list[Node]] = {}
    for node in live_nodes():
        if node.gpus:
            counts[node.accelerator] += node.gpus
            some.setdefault(node.accelerator, []).append(node)
    found: list[tuple[str, str]] = []
    silent: DeviceError | None = None
    for kind, _ in counts.most_common():
        for node in some[kind]:
            try:
                found.append(_probe(node))
                break
            except DeviceError as error:  # another node of this kind may answer
                silent = error
        if found and wanted in (None, found[-1][0]):
            return found[-1]
    if not found:
        raise silent or DeviceError("no GPU answers")
    raise ConfigError("cluster.device_model", given=wanted, allowed=[name for name, _ in found])


def evaluator_count(spec: RunSpec, capacity: Capacity) -> int:
    """How many evaluators there is room for now, if not fewer are wanted.

    Raises:
        ConfigError: More GPU evaluators are wanted than there are GPUs, or more CPU evaluators than cores.
    """
    wanted = spec.config.cluster.evaluators
    unit, available = ("GPU", capacity.gpus) if spec.device == "gpu" else ("CPU", capacity.cpus)
    if wanted == "auto":
        return available if unit == "GPU" else max(1, available - 1)
    if wanted > available:
        raise ConfigError(
            "cluster.evaluators", given=wanted, allowed=f"auto, or at most {available}: the cluster has {available} {unit}s"
        )
    return wanted


def _probe(node: Node) -> tuple[str, str]:
    """Model and target of a node's GPUs.

    Raises:
        DeviceError: They do not answer.
    """
    there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    reference = ray.remote(num_gpus=1, num_cpus=0, max_calls=1, max_retries=0, scheduling_strategy=there)(gpu_identity).remote()
    try:
        found: tuple[str, str] = ray.get(reference, timeout=PROBE_S)
    except (ray.exceptions.RayError, TimeoutError) as error:
        ray.cancel(reference, force=True)
        raise DeviceError(f"the GPU of node {node.name} does not answer: {str(error).splitlines()[-1]}") from error
    return found


def gpu_identity() -> tuple[str, str]:
    """Model and target of the GPU this process sees; runs in a Ray task of its own, because it makes a CUDA context."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    if torch.version.hip:
        return properties.name, f"hip:{properties.gcnArchName.split(':')[0]}"
    return properties.name, f"cuda:{properties.major}{properties.minor}"
