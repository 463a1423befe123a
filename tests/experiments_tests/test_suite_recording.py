"""What is noted of a suite's scripts: large tensors cost nothing, a slow script keeps what it called, and older kernels are read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from evo.suites import recording_child
from evo.suites.claims import Claims
from evo.suites.entries import LARGE, LOOKED_AT, Text, Unread, specification
from evo.suites.gone_modules import without_gone_modules
from evo.suites.recording_child import Calls, Spy, TookLong, record


@pytest.fixture
def claims() -> Iterator[Claims]:
    with Claims(lambda: None) as made:
        yield made


def test_parts_of_a_large_tensor_are_drawn_as_its_beginning(claims: Claims) -> None:
    whole = torch.empty((2, 2 * LARGE), dtype=torch.float16, device="cuda").normal_(mean=0.0, std=0.25)
    for part in (whole, whole[1], whole[:, LARGE:]):
        found = specification(part)
        assert found["distribution"] == "normal"
        assert found["scale"] == pytest.approx(0.25, rel=0.05)
    assert specification(torch.zeros(LARGE, device="cuda"))["distribution"] == "zeros"
    assert specification(torch.zeros(3, 5, device="cuda")[1:])["strides"] == [5, 1]


def test_large_tensors_hold_nothing_that_others_left() -> None:
    def filled(size: int) -> torch.Tensor:
        return torch.full((size,), float("nan"), dtype=torch.float64)

    once = filled(LARGE - 4096)
    del once  # from here on the allocator keeps memory of up to this size when it is freed
    for size in (1 << 18, 1 << 19, 1 << 20, 3 << 20):
        some = [filled(size) for _ in range(16)]
        behind = filled(1 << 15)  # so that they are not the end of the heap, which is given back
        del some
        with Claims(lambda: None):
            empty = torch.empty((2, 2 * LARGE), dtype=torch.float16, device="cuda")
            drawn = torch.rand((2, 2 * LARGE), dtype=torch.float16, device="cuda")
            product = torch.ones((LARGE, 2), dtype=torch.float16) @ behind[:8].view(2, 4).to(torch.float16)
        for made in (empty, drawn, product):
            assert not bool(made.view(torch.int16).flatten()[LOOKED_AT:].any())
        del empty, drawn, product, made


def test_places_and_offsets_are_drawn_together(claims: Claims) -> None:
    def drawn(item: torch.Tensor) -> tuple[Any, ...]:
        found = specification(item)
        return found["distribution"], found.get("low"), found.get("high")

    assert drawn(torch.randperm(64, device="cuda").view(4, 16)) == ("permutation", 0.0, 64.0)
    assert drawn(torch.tensor([0, 3, 3, 17], dtype=torch.int32, device="cuda")) == ("partition", 0.0, 17.0)
    assert drawn(torch.tensor([[0, 3], [3, 17]], device="cuda")) == ("integers", 0.0, 18.0)
    assert drawn(torch.tensor([9, 3, 17], device="cuda")) == ("integers", 3.0, 18.0)
    assert drawn(torch.tensor([4, -100, 9], device="cuda")) == ("integers", 4.0, 10.0), "what is to be ignored is no label"
    assert drawn(torch.tensor([4, -2, -1], device="cuda")) == ("integers", -2.0, 5.0)
    assert drawn(torch.tensor([5, 5], device="cuda")) == ("integers", 5.0, 6.0)
    assert drawn(torch.arange(8, device="cuda")[2:]) == ("integers", 2.0, 8.0), "only a whole tensor can be drawn so"


def test_products_of_large_tensors_are_not_computed(claims: Claims) -> None:
    side = 1 << 13
    x = torch.randn(side, side, device="cuda")
    begun = time.process_time()
    y = torch.nn.functional.linear(x @ x, x)
    assert time.process_time() - begun < 1.0, "a product of this size takes a minute"
    assert y.shape == (side, side)
    small = torch.randn(3, 4, device="cuda")
    assert torch.equal(small @ small.T, torch.mm(small, small.T))


def test_a_module_that_is_an_argument_is_what_holds_its_tensors(claims: Claims) -> None:
    text = Text({})
    source = text.function("norm", (torch.nn.LayerNorm(6, eps=0.5),), {})
    weight, bias = (place for place, item in enumerate(text.arguments) if isinstance(item, dict))
    names: dict[str, Any] = {"norm": lambda held: (held.weight, held.bias, held.eps, held.elementwise_affine)}
    exec(source, names)
    given = [f"tensor {place}" if isinstance(item, dict) else item for place, item in enumerate(text.arguments)]
    assert names["suite_entry"](*given) == (f"tensor {weight}", f"tensor {bias}", 0.5, True)
    with pytest.raises(Unread, match="a module of modules"):
        Text({}).function("norm", (torch.nn.Sequential(torch.nn.ReLU()),), {})


def test_a_slow_script_keeps_what_it_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recording_child, "SCRIPT_S", 0.05)
    monkeypatch.setattr(recording_child, "_quiet", lambda calls: None)
    perf = """
from TritonBench_v1.double import double
import torch

class performance_metrics:
    def get_input_tensors(self):
        self.input_tensors = [torch.rand(7), torch.rand(1 << 23)]
        while True:
            pass

    def to_cuda(self, item):
        return item

    def call_op(self, item):
        return double(item) + 1
"""
    source = "def double(x):\n    return 2 * x\n"
    request = {"source": source, "driver": "double(torch.ones(3))\nwhile True:\n    pass\n", "perf": perf, "name": "double"}
    answer = record({**request, "source": f"import torch\n{source}", "launching": False, "by_pytest": False, "target": "cuda:90"})
    assert [call["arguments"][0]["shape"] for call in answer["calls"]] == [[3], [7], [1 << 23]]
    for script in ("driver", "perf"):
        assert "TookLong: it takes more than 0.05 s here" in answer[script]


def test_what_is_measured_of_torch_on_much_data_is_noted_and_not_made() -> None:
    made: list[torch.Tensor] = []
    calls = Calls(launching=False)
    spy = Spy(lambda x: made.append(x), "noted", calls)
    calls.script = "perf"
    spy(torch.empty(LARGE))
    assert (len(calls.noted), len(made)) == (1, 0)
    spy(torch.empty(4))
    calls.script = "driver"
    spy(torch.empty(LARGE, 1))
    assert (len(calls.noted), len(made)) == (3, 2)


def test_no_handler_of_a_script_takes_its_end_for_an_error() -> None:
    assert not issubclass(TookLong, Exception)


def test_aids_of_autotuning_that_are_gone_are_written_into_the_module() -> None:
    source = (
        "from triton.ops.matmul_perf_model import (\n    early_config_prune as prune,\n    estimate_matmul_time,\n)\n\nX = 1\n"
    )
    text, gone = without_gone_modules(source)
    names: dict[str, Any] = {}
    exec(text, names)
    assert names["prune"]([1, 2], {}) == [1, 2]
    assert names["estimate_matmul_time"](num_warps=4) == 0.0
    assert (gone, names["X"]) == (("triton.ops.matmul_perf_model",), 1)
    other = "from triton.ops.matmul_perf_model import early_config_prune, something\n"
    assert without_gone_modules(other) == (other, ())
