"""Traces a reference to a graph of operators and has Inductor write its code; runs in a disposable process (see `child`)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from evo.seeding.decompositions import decompositions
from evo.seeding.stand_in import Written
from evo.seeding.symbols import FakeArguments
from evo.tasks.base import Task

SETTINGS: Mapping[str, Any] = {
    "allow_buffer_reuse": False,
    "comment_origin": False,
    "compile_threads": 1,
    "combo_kernels": False,
    "fallback_random": False,
    "force_disable_caches": True,
    "fx_graph_cache": False,
    "graph_partition": False,
    "layout_optimization": False,
    "max_autotune": False,
    "size_asserts": False,
    "nan_asserts": False,
    "realize_opcount_threshold": 10_000,  # else the places that a filter sees are written to memory before they are summed
    "alignment_asserts": False,
    "triton.cudagraphs": False,
    "triton.cooperative_reductions": False,
    "triton.mix_order_reduction": False,
    "triton.unique_kernel_names": True,
    "triton.descriptive_names": "original_aten",
}
"""What makes the code plain. A name that an older or newer Inductor does not have is left out."""

TEMPLATES: Mapping[str, Any] = {
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "TRITON",
    "max_autotune_conv_backends": "TRITON",
    "max_autotune_gemm_search_space": "DEFAULT",
    "triton.enable_persistent_tma_matmul": False,
    "triton.decompose_k_threshold": 1 << 40,
    "triton.num_decompose_k_splits": 0,
    "shape_padding": False,
    "prologue_fusion": False,
}
"""In the form without operators of torch, products are Triton templates."""


class NotCompilable(Exception):
    """Inductor makes nothing of the reference that could be a seed; the text says why."""


@dataclass(frozen=True)
class Traced:
    """A reference as a graph whose outputs are a flat tuple, and how the reference nests them."""

    graph: torch.fx.GraphModule
    inputs: list[torch.Tensor]
    positions: list[int]
    outputs: object


@dataclass
class _Nesting:
    """Takes the outputs of a call apart, and keeps how they were nested: indices in place of tensors."""

    tensors: list[torch.Tensor] = field(default_factory=list)

    def of(self, value: Any) -> object:
        """JSON: an index, None, ``{"tuple": […]}``, ``{"list": […]}`` or ``{"dict": {…}}``."""
        if isinstance(value, torch.Tensor):
            for index, known in enumerate(self.tensors):
                if known is value:
                    return index
            self.tensors.append(value)
            return len(self.tensors) - 1
        if value is None:
            return None
        if isinstance(value, dict):
            return {"dict": {str(key): self.of(item) for key, item in value.items()}}
        if isinstance(value, tuple | list):
            return {"list" if isinstance(value, list) else "tuple": [self.of(item) for item in value]}
        raise NotCompilable(f"an output of type {type(value).__name__}")


def trace(task: Task, fakes: FakeArguments, *, products: str) -> Traced:
    """Runs the reference on tensors without data.

    Args:
        task: Whose reference it is.
        fakes: Its arguments and parameters.
        products: ``extern``, ``template`` or ``plain``: what becomes of products and convolutions, see `decompositions`.

    Raises:
        NotCompilable: The reference needs values, or returns what is no tensor.
    """
    count = len(fakes.values) - len(task.parameters)
    positions = [index for index, item in enumerate(fakes.values) if isinstance(item, torch.Tensor)]
    nesting: list[object] = []

    def flat(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(fakes.values)
        for position, tensor in zip(positions, tensors, strict=True):
            values[position] = tensor
        parameters = (dict(zip(task.parameters, values[count:], strict=True)),) if task.form == "module" else ()
        taken = _Nesting()
        nesting[:] = [taken.of(task.reference(*parameters, *values[:count]))]
        return tuple(taken.tensors)

    inputs = fakes.on_host()
    functional = torch.func.functionalize(flat, remove="mutations")
    try:
        with torch.no_grad(), fakes.mode, sdpa_kernel(SDPBackend.MATH), enable_python_dispatcher():
            graph = make_fx(functional, decomposition_table=decompositions(products))(*inputs)
    except NotCompilable:
        raise
    except Exception as error:
        raise NotCompilable(f"the reference cannot be traced without values: {line_of(error)}") from error
    return Traced(graph, [fakes.values[position] for position in positions], positions, nesting[0])


def generate(traced: Traced, fakes: FakeArguments, *, products: str) -> str:
    """The module that Inductor writes.

    Raises:
        NotCompilable: It fails.
    """
    from torch._inductor import compile_fx
    from torch._inductor.virtualized import V

    try:
        with fakes.mode, tracing(TracingContext(fakes.mode)), V.set_fake_mode(fakes.mode), _settings(products):
            _move(traced.graph, fakes)
            compile_fx.compile_fx_inner(traced.graph, traced.inputs)
    except Written as written:
        return written.code
    except Exception as error:
        own = re.search(r"NotCompilable: (.*)", str(error))
        raise NotCompilable(own[1] if own else f"Inductor: {line_of(error)}") from error
    raise NotCompilable("Inductor wrote no code, as nothing is computed")


def _move(graph: torch.fx.GraphModule, fakes: FakeArguments) -> None:
    """Takes a graph of the CPU to the device. Traced on the CPU, a reference runs without CUDA in torch; its operators are the same."""
    host, device = torch.device("cpu"), torch.device("cuda", 0)
    for found in list(graph.graph.nodes):
        node = _fold(graph, found) if found.op == "get_attr" else found
        node.args = torch.fx.node.map_aggregate(node.args, lambda item: device if item == host else item)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, lambda item: device if item == host else item)
        node.meta["val"] = torch.utils._pytree.tree_map_only(torch.Tensor, fakes.on_device, node.meta.get("val"))
        node.meta.setdefault("original_aten", node.target)
    graph.recompile()


def _fold(graph: torch.fx.GraphModule, node: torch.fx.Node) -> torch.fx.Node:
    """A constant of one element is filled in; the values of others have no place in a module of kernels."""
    value = getattr(graph, str(node.target))
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or isinstance(value, FakeTensor):
        raise NotCompilable("the reference makes a tensor of values of its own, which are not arguments")
    fake = node.meta["val"]
    with unset_fake_temporarily():  # older versions of torch read no value within it
        number = value.item()
    with graph.graph.inserting_before(node):
        kwargs: dict[str, Any] = {"dtype": value.dtype, "device": torch.device("cuda", 0), "pin_memory": False}
        full = graph.graph.call_function(torch.ops.aten.full.default, (list(value.shape), number), kwargs)
        full.meta["val"] = fake
    node.replace_all_uses_with(full)
    graph.graph.erase_node(node)
    return full


@contextlib.contextmanager
def _settings(products: str) -> Iterator[None]:
    from torch._inductor import config, ir, select_algorithm

    wanted = {**SETTINGS, **(TEMPLATES if products == "template" else {})}
    known = config.get_config_copy()
    scan: Any = ir.Scan
    original = scan.num_splits

    def whole(*args: Any, **kwargs: Any) -> tuple[Any, int]:
        return original(*args, **kwargs)[0], 1

    chosen = _first_choice(select_algorithm) if products == "template" else contextlib.nullcontext()
    with config.patch({key: value for key, value in wanted.items() if key in known}), chosen:
        scan.num_splits = whole  # one program scans a row: split, programs would wait for each other through memory
        try:
            yield
        finally:
            scan.num_splits = original


@contextlib.contextmanager
def _first_choice(module: Any) -> Iterator[None]:
    """Decides between templates by a rule instead of timing them: tuning has the choice later, as their tiles are knobs."""
    cache = module.AlgorithmSelectorCache
    original: Callable[..., Any] = cache.__call__

    def choose(self: Any, name: str, choices: list[Any], *args: Any, **kwargs: Any) -> Any:
        templates = [item for item in choices if isinstance(item, module.TritonTemplateCaller)]
        if not templates:
            raise NotCompilable(f"there is no Triton template for {name}")
        kwargs["return_multi_template"] = False
        return original(self, name, [min(templates, key=_distance)], *args, **kwargs)

    cache.__call__ = choose
    try:
        yield
    finally:
        cache.__call__ = original


def _distance(choice: Any) -> tuple[int, str]:
    """From 64 × 64 × 32 on four warps, which fits every device."""
    facts = {key.lower(): value for key, value in choice.log_info.items()}
    tile = str(facts.get("tile_shape", "(0, 0, 0)")).strip("()").split(",")
    sizes = [int(item) for item in tile]
    wanted = (64, 32, 64)
    off = sum(abs(a.bit_length() - b.bit_length()) for a, b in zip(sizes, wanted, strict=False))
    off += abs(int(facts.get("num_warps", 4)) - 4) + abs(int(facts.get("num_stages", 2)) - 3)
    return off, str(choice.name)


def line_of(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
