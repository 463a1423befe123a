"""Makes CPU-side fakes pass for a CUDA device in the tracer child: devices, ``torch.cuda`` queries and Triton's driver."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from triton.backends.compiler import GPUTarget

from evo.tracing.recorder import Recording, Refused, Untraceable
from evo.tracing.targets import Target

_CUDA, _HOST = torch.device("cuda:0"), torch.device("cpu")
_FACTORIES = {
    torch.empty, torch.zeros, torch.ones, torch.full, torch.arange, torch.rand, torch.randn, torch.tensor, torch.empty_strided,
    torch.linspace, torch.eye, torch.randint,
}  # fmt: skip
_HOST_READS = {
    torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.__bool__, torch.Tensor.__int__,
    torch.Tensor.__float__, torch.Tensor.__index__, torch.Tensor.__array__,
}  # fmt: skip
_CLAIMED: dict[Any, Any] = {
    torch.Tensor.is_cuda: True,
    torch.Tensor.is_cpu: False,
}  # descriptors; a property's getter has it as __self__
CLAIMED_OF_REAL: dict[Any, Any] = {**_CLAIMED, torch.Tensor.device: _CUDA}
"""Where tensors are real ones of the CPU, which fakes are not."""


class Claiming(TorchFunctionMode):
    """Tensors say that they are on the GPU, whatever they are; what else torch is asked for is a subclass's affair.

    Attributes:
        claimed: Descriptors of properties → what they say.
    """

    claimed: Mapping[Any, Any] = _CLAIMED

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called for every torch function and tensor method or property."""
        keywords = dict(kwargs or {})
        if func is torch.device:
            return func(*args, **keywords)
        descriptor = getattr(func, "__self__", None)
        for claimed, answer in self.claimed.items():
            if descriptor is claimed:
                return answer
        if func is torch.Tensor.get_device:
            return 0
        if func is torch.Tensor.cuda:
            return args[0]
        return self.called(func, args, keywords)

    def called(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """What a call gives that asks nothing of the kind."""
        return func(*args, **keywords)


class CudaFacade(Claiming):
    """Answers device questions with ``cuda:0``, maps ``cuda`` to the CPU on the way in, and refuses host tensors and host reads."""

    def __init__(self, *, host_allowed: bool = False) -> None:
        super().__init__()
        self.host_allowed = host_allowed

    def called(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """See `Claiming`."""
        if func in _HOST_READS:
            raise Untraceable(f"{getattr(func, '__name__', func)}() reads a value on the host")
        if func in _FACTORIES and keywords.get("device") is None and not self.host_allowed:
            raise Refused(f"torch.{func.__name__}(…) without a device makes a host tensor; pass device=x.device")
        args = tuple(self._mapped(item) for item in args)
        return func(*args, **{key: self._mapped(item) for key, item in keywords.items()})

    def _mapped(self, item: Any) -> Any:
        if isinstance(item, torch.device) or (isinstance(item, str) and item.split(":")[0] in ("cuda", "cpu")):
            device = torch.device(item) if isinstance(item, str) else item
            if device.type == "cpu" and not self.host_allowed:
                raise Untraceable("moves data to the host")
            if device.type in ("cuda", "cpu"):
                return _HOST
        return item


class StandInDriver:
    """What Triton's runtime asks a driver for, answered for a target that is not here."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.utils = SimpleNamespace(get_device_properties=lambda device: dict(target.properties))

    def get_current_target(self) -> GPUTarget:
        """The target kernels are traced for."""
        return self._target.gpu_target

    def get_current_device(self) -> int:
        """Always 0."""
        return 0

    def set_current_device(self, device: int) -> None:
        """Only device 0 exists."""
        if device != 0:
            raise Refused("kernels run on device 0 alone")

    def get_current_stream(self, device: int = 0) -> int:
        """The default stream."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """The claimed device."""
        return torch.device("cuda:0")

    def get_device_interface(self) -> Any:
        """torch.cuda, whose queries are answered too (see `cuda_queries`)."""
        return torch.cuda

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """Compute capability."""
        return self._target.capability


def _claimed_device(tensor: FakeTensor) -> torch.device:
    # Candidate code runs directly under the facade; torch's own code, below it, must see where the fake really is.
    mode = _get_current_function_mode()  # type: ignore[no-untyped-call]
    return _CUDA if isinstance(mode, CudaFacade) else tensor.fake_device


@contextlib.contextmanager
def fake_cuda(recording: Recording, target: Target) -> Iterator[None]:
    """Replaces device look-ups of this process for good measure until it ends; the process is disposable."""
    driver = StandInDriver(target)
    triton.runtime.driver.set_active(driver)
    setattr(FakeTensor, "data_ptr", lambda tensor: recording.address(tensor))  # noqa: B010  a method of torch's is replaced on purpose
    original: Any = FakeTensor.device
    claimed = property(lambda t: original.fget(t) if t.fake_mode.in_kernel_invocation else _claimed_device(t))
    setattr(FakeTensor, "device", claimed)  # noqa: B010
    properties = SimpleNamespace(
        name=target.name,
        major=target.capability[0],
        minor=target.capability[1],
        multi_processor_count=target.properties["multiprocessor_count"],
        total_memory=target.memory_bytes,
        warp_size=target.properties["warpSize"],
        shared_memory_per_block_optin=target.properties["max_shared_mem"],
        L2_cache_size=target.l2_bytes,
        gcnArchName=str(target.gpu_target.arch),
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
    )
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=0: target.name,
        "get_device_capability": lambda device=0: target.capability,
        "get_device_properties": lambda device=0: properties,
        "synchronize": lambda device=None: None,
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "set_device": driver.set_current_device,
        "device": lambda device=None: contextlib.nullcontext(),
        "device_of": lambda tensor=None: contextlib.nullcontext(),
        "_DeviceGuard": lambda index=0: contextlib.nullcontext(),
        "Stream": _refuse("torch.cuda.Stream: work on another stream"),
        "stream": _refuse("torch.cuda.stream: work on another stream"),
        "Event": _refuse("torch.cuda.Event: timing inside a kernel module"),
        "CUDAGraph": _refuse("torch.cuda.CUDAGraph: graphs inside a kernel module"),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    # What wrappers made by TorchInductor import:
    setattr(torch._C, "_cuda_getCurrentRawStream", driver.get_current_stream)  # noqa: B010
    setattr(torch._C._dynamo.guards, "_empty_strided_cuda", _empty_strided)  # noqa: B010
    yield


def _empty_strided(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _refuse(what: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Refused(f"{what} is not part of a kernel")

    return refuse
