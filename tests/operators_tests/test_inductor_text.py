"""What Inductor writes becomes a plain module: kernels, knobs, grids, views and the entry that tells forms apart."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from evo.knobs import read_knobs
from operators.inducing.functions import Functions
from operators.inductor import Entry, NotApplicableError, seed_module

NAME = "triton_poi_fused_add_tanh_0"
KERNEL = """
import triton
import triton.language as tl

@triton_heuristics.pointwise(
    size_hints={'x': 4096}, filename=__file__,
    inductor_meta={'grid_type': 'GRID', 'autotune_hints': set()},
)
@triton.jit
def triton_poi_fused_add_tanh_0(in_ptr0, out_ptr0, ks0, xnumel, XBLOCK : tl.constexpr):
    XNUMEL
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = MASK
    x0 = xindex
    idle = x0 + 1
    tmp0 = tl.load(in_ptr0 + (x0), xmask, other=0.0)
    tmp1 = libdevice.tanh(tmp0)
    tmp2 = tl.full([1], 0.5, tl.float32)
    tmp3 = tmp1 + tmp2
    tmp4 = (ks0).to(tl.float32)
    tmp5 = tmp3 * tmp4
    tl.store(out_ptr0 + (x0), tmp5, xmask)
"""
CALL = """
def call(args):
    arg0_1, = args
    args.clear()
    arg0_1_size = arg0_1.size()
    s7 = arg0_1_size[0]
    assert_size_stride(arg0_1, (s7, 8), (8, 1))
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((s7, 8), (8, 1), torch.float32)
        stream0 = get_raw_stream(0)
        triton_poi_fused_add_tanh_0.run(arg0_1, buf0, s7, 8*s7, stream=stream0)
        del arg0_1
    return (reinterpret_tensor(buf0, (8, s7), (1, 8), 4), buf0, )
"""


def form(kernel: str = KERNEL, call: str = CALL, **more: Any) -> dict[str, Any]:
    kernel = kernel.replace("GRID", "Grid1D").replace("XNUMEL", "pass").replace("MASK", "xindex < xnumel")
    return {
        "code": f"{NAME} = async_compile.triton('{NAME}', '''{kernel}''', device_str='cuda')\n{call}",
        "configurations": {
            "triton_poi_fused_add_tanh_0": [
                {"XBLOCK": 256, "num_warps": 4, "num_stages": 1},
                {"XBLOCK": 128, "num_warps": 8, "num_stages": 1},
            ]
        },
        "symbols": {"n0": [0, 0]},
        "renamed": {"s7": "n0"},
        "arguments": [{"dtype": "float32", "shape": ["n0", 8]}],
        "layouts": [{"position": 0, "test": "x.is_contiguous()"}],
        "positions": [0],
        "guards": ["8*n0 <= 2147483647"],
        "outputs": {"tuple": [1, {"dict": {"turned": 0}}]},
        **more,
    }


def written(*forms: dict[str, Any]) -> str:
    return seed_module(forms, "", Entry("scaled", ("x",))).source


def test_a_generated_kernel_becomes_a_module_with_knobs() -> None:
    source = written(form())
    ast.parse(source)
    knobs = read_knobs(source)
    assert dict(knobs.default) == {"XBLOCK": 256, "num_warps": 4}
    assert knobs.space["XBLOCK"] == (32, 64, 128, 256, 512, 1024, 2048)
    assert [dict(hint) for hint in knobs.hints] == [{"XBLOCK": 128, "num_warps": 8}]
    launch = 'add_tanh_kernel[(triton.cdiv(8 * n0, CONFIG["XBLOCK"]),)](x, y, n0, 8 * n0, XBLOCK=CONFIG["XBLOCK"]'
    assert launch in source


def test_the_wrapper_allocates_returns_and_refuses_plainly() -> None:
    source = written(form())
    entry = source.split("def scaled(x):")[1]
    assert "torch.empty((n0, 8), dtype=torch.float32, device=x.device)" in entry
    assert "n0 = x.shape[0]" in entry
    assert "as_strided((8, n0), (1, 8), y.storage_offset() + 4)" in entry
    assert "return (y, {'turned': " in entry
    assert "x.is_contiguous()" in entry
    assert "(x.shape[0], 8)" in entry
    for left in ("_DeviceGuard", "stream", "assert_size_stride", "args"):
        assert left not in entry


def test_kernels_are_tidied() -> None:
    source = written(form())
    assert "tmp3 = tmp1 + 0.5" in source, "constants stand where they are used"
    assert "tl.full" not in source
    assert "idle" not in source, "nobody reads it"
    assert "tl.cast(size0, tl.float32)" in source, "a size of 1 is a Python number in a compiled kernel"
    assert "def tanh(x):" in source, "Triton's own language alone"
    assert "libdevice" not in source


def test_a_mask_that_always_holds_and_a_size_that_is_a_number_go() -> None:
    kernel = KERNEL.replace("XNUMEL", "xnumel = 4096").replace("MASK", "tl.full([XBLOCK], True, tl.int1)[:]")
    source = written(form(kernel))
    assert "tl.load(in0_ptr + x0)" in source
    assert "xmask" not in source
    assert "triton.cdiv(8 * n0" in source
    assert "(x, y, n0, XBLOCK=" in source, "the kernel does not take what its body sets"


def test_forms_are_told_apart_and_share_equal_kernels() -> None:
    half = form(call=CALL.replace("torch.float32", "torch.float16"), arguments=[{"dtype": "float16", "shape": ["n0", 8]}])
    source = written(form(), half)
    assert source.count("@triton.jit\ndef add_tanh_kernel") == 1
    assert "return scaled_1(x)" in source
    assert "return scaled_2(x)" in source
    assert source.rstrip().endswith("raise ValueError('made for other arguments than these')")


def test_operators_of_torch_are_named() -> None:
    call = CALL.replace("        del arg0_1", "        extern_kernels.mm(arg0_1, buf0, out=buf0)")
    seed = seed_module([form(call=call)], "", Entry("scaled", ("x",)))
    assert seed.operators == {"aten.mm"}
    assert "torch.mm(x, y, out=y)" in seed.source


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (form(KERNEL.replace("GRID", "CooperativeReductionGrid")), "CooperativeReductionGrid"),
        (form(call="x = 1"), "no function call"),
        (form(call=CALL + "\nfast = async_compile.cpp_pybinding([], '')"), "async_compile.cpp_pybinding"),
        (form(call=CALL.replace("        del arg0_1", "        while True:\n            pass")), "statement that is not known"),
    ],
    ids=["grid", "no call", "no triton", "loop"],
)
def test_what_no_module_can_have_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(NotApplicableError, match=said):
        written(changed)


def test_functions_of_the_compilers_library_are_taken_over_with_what_they_call() -> None:
    library = "@triton.jit\ndef inner(a):\n    '''Doc.'''\n    return a + 1\n\n"
    library += "@triton.jit\ndef outer(a, b):\n    return inner(a) * libdevice.exp(b)\n"
    functions = Functions(library)
    node = functions.visit(ast.parse("tmp = triton_helpers.outer(a, triton_helpers.maximum(b, c))"))
    assert ast.unparse(node) == "tmp = outer_(a, tl.maximum(b, c, propagate_nan=tl.PropagateNan.ALL))"
    assert list(functions.definitions) == ["inner_", "outer_"]
    assert "tl.exp(b)" in functions.definitions["outer_"]
    assert "Doc" not in functions.definitions["inner_"]
