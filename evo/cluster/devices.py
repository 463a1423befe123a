"""Decides what evaluators run on, and which target kernels are compiled for."""

from __future__ import annotations

import ray

from evo.cluster.session import Capacity
from evo.config import RunConfig
from evo.errors import ConfigError

MODELLED_TARGET = "cuda:90"
"""The target that is modelled where there is no GPU and none is named."""


def resolve_device(config: RunConfig, capacity: Capacity) -> tuple[str, str]:
    """The device of evaluators (``gpu`` or ``cpu:TARGET``) and the target.

    Raises:
        ConfigError: A GPU is asked for and there is none, or it is of another kind than the target.
    """
    wanted = config.cluster.device
    if wanted == "gpu" and capacity.gpus == 0:
        action = "this Ray has no GPU: check nvidia-smi, or join a cluster with --address"
        raise ConfigError("cluster.device", given="gpu", allowed="cpu or auto here", action=action)
    if wanted == "cpu" or capacity.gpus == 0:
        target = MODELLED_TARGET if config.target == "auto" else config.target
        return f"cpu:{target}", target
    found: str = ray.get(ray.remote(num_gpus=1, num_cpus=0, max_calls=1)(gpu_target).remote())
    if config.target not in ("auto", found):
        action = "its kernels cannot run on the GPU that was found: use auto, or device: cpu for modelled estimates"
        raise ConfigError("target", given=config.target, allowed=["auto", found], action=action)
    return "gpu", found


def gpu_target() -> str:
    """Target of the GPU this process sees; runs in a Ray task of its own, because it makes a CUDA context."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    if torch.version.hip:
        return f"hip:{properties.gcnArchName.split(':')[0]}"
    return f"cuda:{properties.major}{properties.minor}"
