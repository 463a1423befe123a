"""Lets Inductor generate code for a CUDA device that is not here: answers its questions about the device for a target."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import triton

from evo.tracing.facade import StandInDriver
from evo.tracing.targets import Target


class Written(BaseException):
    """Raised with the code in place of importing it: Inductor's work is done once its text is there. No error, so no handler of
    Inductor's own takes it for one.

    Attributes:
        code: The generated module.
    """

    def __init__(self, code: str) -> None:
        super().__init__("code was generated")
        self.code = code


def stand_in(target: Target) -> None:
    """Replaces device look-ups of this process until it ends; the process is disposable. The same with and without a GPU, so that a
    seed does not depend on the machine it was made on."""
    triton.runtime.driver.set_active(StandInDriver(target))
    major, minor = target.capability
    properties = SimpleNamespace(
        name=target.name, major=major, minor=minor, multi_processor_count=target.multiprocessors, warp_size=target.warp_size,
        regs_per_multiprocessor=target.registers_per_sm, max_threads_per_multi_processor=target.threads_per_sm, max_threads_per_block=1024,
        shared_memory_per_block=49152, shared_memory_per_block_optin=target.max_shared_bytes,
        shared_memory_per_multiprocessor=target.shared_per_sm, total_memory=target.memory_bytes, L2_cache_size=target.l2_bytes,
        gcnArchName=str(target.arch), is_integrated=0,
    )  # fmt: skip
    answers: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "_get_device_properties": lambda device=0: properties,
        "_exchange_device": lambda index: -1,
        "_maybe_exchange_device": lambda index: -1,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_name": lambda device=None: target.name,
        "is_available": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda state, device="cuda": None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch.version.cuda = torch.version.cuda or "13.0"
    # A torch that is built for CUDA makes a real tensor there before the first fake one.
    fake_tensors: Any = torch._subclasses.fake_tensor
    fake_tensors.init_gpu_context = lambda device: None
    _interfaces(properties)


def _interfaces(properties: SimpleNamespace) -> None:
    """Dynamo's registry of devices took its own copies of some of the functions."""
    from torch._dynamo.device_interface import CudaInterface

    interface: Any = CudaInterface
    interface.is_available = staticmethod(lambda: True)
    interface.get_device_properties = staticmethod(lambda device=None: properties)
    interface.get_compute_capability = staticmethod(lambda device=None: properties.major * 10 + properties.minor)
    interface.current_device = staticmethod(lambda: 0)
    interface.device_count = staticmethod(lambda: 1)
    interface.Worker.get_device_properties = staticmethod(lambda device=None: properties)
    interface.Worker.current_device = staticmethod(lambda: 0)


def write_instead_of_importing() -> None:
    """Makes Inductor raise `Written` where it would import what it generated."""
    from torch._inductor.graph import GraphLowering

    def compile_to_module(graph: Any) -> Any:
        code = graph.codegen()[0]
        raise Written(getattr(code, "value", code))

    lowering: Any = GraphLowering
    lowering.compile_to_module = compile_to_module
