"""Whatever way a launch gets its tile sizes and options, they become knobs that leave it as it is until tuning turns them."""

import ast
import asyncio
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from evo.knobs import read_knobs
from evo.records import NoProposal, Proposal, Variant
from operators.base import Context, Parent
from operators.knobs import Exposed, bounded, expose
from operators.rewrite.expose_knobs import ExposeKnobs
from tests.operators_tests.launch_ways import HEAD, KERNEL, LOOPED, WAYS


@dataclass(frozen=True)
class Sized:
    arguments: tuple[object, ...]


def tensor(*shape: int) -> SimpleNamespace:
    return SimpleNamespace(shape=shape)


def exposed(body: str, kernel: str = KERNEL, head: str = HEAD, **more: object) -> Exposed:
    found = expose(head + kernel + body, **more)  # type: ignore[arg-type]
    ast.parse(found.source)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_tiles_and_warps_are_found_whatever_way_they_are_given(way: str) -> None:
    body, block, warps = WAYS[way]
    found = exposed(body)
    knobs = read_knobs(found.source)
    assert knobs.default == {"BLOCK": block, "num_warps": warps}, found.left
    assert len(knobs.space["BLOCK"]) >= 4
    assert len(found.found) == 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("def f(x, y, n, g):\n    BLOCK = 512\n    add_kernel[g](x, y, n, BLOCK)\n", "grid"),
        ("def f(x, y, n):\n    BLOCK = 500\n    add_kernel[(triton.cdiv(n, BLOCK),)](x, y, n, BLOCK)\n", "power of two"),
        ("def f(x, y, n):\n    BLOCK = 512\n    add_kernel[(triton.cdiv(n, BLOCK),)](x, y, BLOCK, BLOCK)\n", "also feeds n"),
        ("def f(x, y, n, more):\n    add_kernel[(n,)](x, y, n, **more)\n", "does not show"),
    ],
)
def test_a_tile_that_other_code_depends_on_is_left_with_a_reason(body: str, reason: str) -> None:
    found = exposed(body)
    assert "BLOCK" not in read_knobs(found.source).default
    assert any(reason in line for line in found.left), found.left


def test_a_tile_that_must_span_a_row_is_no_knob_but_its_warps_are() -> None:
    kernel = KERNEL.replace("tl.program_id(0) * BLOCK + ", "")
    body = "def f(x, y, n):\n    BLOCK = triton.next_power_of_2(n)\n    add_kernel[(1,)](x, y, n, BLOCK)\n"
    assert read_knobs(exposed(body, kernel).source).default == {"num_warps": 4}


@pytest.mark.parametrize(
    ("head", "kernel"),
    [
        ("import torch, triton\nfrom triton import language as tl\n", KERNEL),
        ("import torch\nimport triton\nimport triton.language as language\n", KERNEL.replace("tl.", "language.")),
        (
            "import torch\nimport triton\nimport triton.language as tl\nfrom triton import jit\n",
            KERNEL.replace("triton.jit", "jit"),
        ),
    ],
)
def test_imports_may_be_spelt_in_other_ways(head: str, kernel: str) -> None:
    found = exposed(WAYS["literals"][0], kernel, head)
    assert read_knobs(found.source).default == {"BLOCK": 512, "num_warps": 8}


def test_heuristics_keep_their_rule_at_zero() -> None:
    rules = '@triton.heuristics({"BLOCK": lambda args: 64 if args["n"] < 99 else 512, "num_warps": rule})'
    body = "def f(x, y, n):\n    add_kernel[lambda m: (triton.cdiv(n, m['BLOCK']),)](x, y, n)\n"
    found = exposed(body, KERNEL.replace("@triton.jit", f"{rules}\n@triton.jit"), HEAD + "def rule(args):\n    return 8\n")
    assert read_knobs(found.source).default == {"BLOCK": 0, "num_warps": 0}
    assert 'lambda args: (CONFIG["BLOCK"] or (64 if args["n"] < 99 else 512))' in found.source
    assert 'lambda args: CONFIG["num_warps"] or rule(args)' in found.source
    named = exposed(body, KERNEL.replace("@triton.jit", '@triton.heuristics({"BLOCK": rule})\n@triton.jit'))
    assert '"BLOCK": lambda args: CONFIG["BLOCK"] or rule(args)' in named.source
    assert read_knobs(named.source).default == {"BLOCK": 0, "num_warps": 4}


def test_what_heuristics_compute_below_an_autotuner_is_a_knob_there() -> None:
    tuned = "@triton.autotune(configs=[triton.Config({'BLOCK': 512}), triton.Config({'BLOCK': 64}, num_warps=8)], key=['n'])"
    rules = '@triton.heuristics({"num_warps": lambda args: 8})'
    body = "def f(x, y, n):\n    add_kernel[lambda m: (triton.cdiv(n, m['BLOCK']),)](x, y, n)\n"
    found = exposed(body, KERNEL.replace("@triton.jit", f"{tuned}  # ours\n{rules}\n@triton.jit"))
    knobs = read_knobs(found.source)
    assert knobs.default == {"BLOCK": 512, "num_stages": 3, "num_warps": 0}
    assert [dict(hint) for hint in knobs.hints] == [{"BLOCK": 64, "num_stages": 3, "num_warps": 0}]
    assert "autotune" not in found.source
    assert 'lambda args: (CONFIG["num_warps"] or (8))' in found.source


def test_the_default_of_a_kernel_s_signature_becomes_a_knob_that_launches_give() -> None:
    kernel = LOOPED.replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr = 256")
    found = exposed("def f(x, y, m, n):\n    sum_kernel[(m,)](x, y, n)\n", kernel)
    assert read_knobs(found.source).default == {"BLOCK": 256, "num_warps": 4, "num_stages": 3}
    assert 'sum_kernel[(m,)](x, y, n, BLOCK=CONFIG["BLOCK"], num_warps=' in found.source


def test_ranges_of_a_length_that_the_kernel_loads_are_tiled_too() -> None:
    kernel = KERNEL.replace("    at =", "    length = tl.load(n)\n    at =").replace("at < n", "at < length")
    assert read_knobs(exposed(WAYS["locals"][0], kernel).source).default == {"BLOCK": 512, "num_warps": 8}
    whole = kernel.replace("tl.program_id(0) * BLOCK + ", "")
    assert read_knobs(exposed(WAYS["locals"][0], whole).source).default == {"num_warps": 8}


def test_launches_that_give_the_same_share_a_knob() -> None:
    body = "def f(x, y, m, n):\n    sum_kernel[(m,)](x, y, n, 256)\n    sum_kernel[(m,)](y, x, n, 256)\n"
    found = exposed(body + "    sum_kernel[(m,)](y, x, n, 256, num_warps=8)\n", LOOPED)
    assert read_knobs(found.source).default == {"BLOCK": 256, "num_warps": 4, "num_warps_2": 8, "num_stages": 3}


def test_options_of_one_backend_are_exposed_on_it_alone() -> None:
    body = WAYS["literals"][0]
    assert {"maxnreg", "num_ctas", "waves_per_eu"}.isdisjoint(read_knobs(exposed(body).source).default)
    asked = exposed(body, optional=("maxnreg", "num_ctas"))
    assert read_knobs(asked.source).default == {"BLOCK": 512, "num_warps": 8, "maxnreg": 0, "num_ctas": 1}
    assert 'maxnreg=CONFIG["maxnreg"] or None' in asked.source
    assert "num_ctas" not in read_knobs(exposed(body, optional=("num_ctas",), target="cuda:80").source).default
    hip = read_knobs(exposed("def f(x, y, m, n):\n    sum_kernel[(m,)](x, y, n, 64)\n", LOOPED, target="hip:gfx942").source)
    assert hip.default == {"BLOCK": 64, "num_warps": 4, "num_stages": 2, "waves_per_eu": 0}
    with pytest.raises(ValueError, match="allowed: maxnreg, num_ctas"):
        expose(HEAD + KERNEL, optional=("nonsense",))


def test_options_that_a_launch_gives_are_knobs_without_being_asked_for() -> None:
    given = "def f(x, y, n):\n    add_kernel[(triton.cdiv(n, 512),)](x, y, n, 512, num_warps=4, maxnreg=96, num_ctas=2)\n"
    knobs = read_knobs(exposed(given).source)
    assert knobs.default == {"BLOCK": 512, "num_warps": 4, "maxnreg": 96, "num_ctas": 2}
    assert knobs.space["maxnreg"] == (64, 96, 128, 168, 255)
    assert {"maxnreg", "num_ctas"}.isdisjoint(read_knobs(exposed(given, target="hip:gfx942").source).default)


def test_options_that_some_configurations_of_an_autotuner_give_are_knobs_with_the_device_s_own_value_beside() -> None:
    body = "def f(x, y, n):\n    add_kernel[lambda m: (triton.cdiv(n, m['BLOCK']),)](x, y, n)\n"
    tuned = "@triton.autotune(configs=[triton.Config({%s}, maxnreg=64), triton.Config({'BLOCK': 64})], key=['n'])\n@triton.jit"
    found = exposed(body, KERNEL.replace("@triton.jit", tuned % "'BLOCK': 512"))
    assert 'maxnreg=CONFIG["maxnreg"] or None' in found.source
    assert read_knobs(found.source).space["maxnreg"] == (64, 0)
    assert read_knobs(found.source).hints[0]["maxnreg"] == 0
    amd = "'BLOCK': 512, 'waves_per_eu': 2, 'matrix_instr_nonkdim': 16, 'kpack': 2"
    space = read_knobs(exposed(body, KERNEL.replace("@triton.jit", tuned % amd), target="hip:gfx942").source).space
    assert space["waves_per_eu"] == (0, 1, 2, 3, 4)
    assert (space["matrix_instr_nonkdim"], space["kpack"]) == ((0, 16, 32), (1, 2)), "other values are not legal"


def test_cases_bound_the_tiles_and_the_warps() -> None:
    body = "def f(x, y):\n    n = x.shape[1]\n    sum_kernel[(x.shape[0],)](x, y, n, 64)\n    return y\n"
    free, bound = exposed(body, LOOPED), exposed(body, LOOPED, cases=[Sized((tensor(9999, 40), tensor(9999)))])
    assert read_knobs(free.source).space["BLOCK"] == (16, 32, 64, 128, 256)
    assert read_knobs(bound.source).space["BLOCK"] == (16, 32, 64, 128), "twice the next power of two above 40"
    assert max(read_knobs(bound.source).space["num_warps"]) == 4, "no more threads than elements"


def test_a_space_is_cut_to_what_registers_hold_and_keeps_its_default() -> None:
    space = {"M": [64, 1024], "N": [512, 8192, 65536], "num_warps": [4]}
    found = bounded(space, None, keep={"M": 64, "N": 65536}, products=[("M", "N")])
    assert found == {"M": (64,), "N": (512, 65536), "num_warps": (4,)}
    assert bounded({**space, "M": [64, 512]}, None, keep={}, products=[("M", "N")])["M"] == (64, 512)
    with pytest.raises(ValueError, match="knob M has no choices"):
        bounded({"M": []}, None, keep={})
    with pytest.raises(ValueError, match="lacks its default"):
        bounded({"M": [1]}, None, keep={"M": 2})


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = (", "cannot be read"),
        ("x = 1\n", "no @triton.jit"),
        (HEAD + KERNEL + "CONFIG = {'BLOCK': 1}\nSPACE = {'BLOCK': []}\n", "choices"),
        (HEAD + KERNEL + "CONFIG = {'BLOCK': 1}\nSPACE = {'BLOCK': [2]}\n", "not among"),
        (HEAD + KERNEL + "def f(CONFIG):\n    return CONFIG\n", "called CONFIG"),
    ],
)
def test_what_cannot_be_read_or_contradicts_itself_is_one_line(source: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        expose(source)
    assert "\n" not in str(caught.value)


def test_knobs_that_a_module_declares_stay_and_new_ones_join_them() -> None:
    known = "CONFIG = {'BLOCK': 512,  # ours\n}\nSPACE = {'BLOCK': [256, 512]}\n"
    body = "def f(x, y, n):\n    B = CONFIG['BLOCK']\n    add_kernel[(triton.cdiv(n, B),)](x, y, n, (B), )  # é\n"
    found = exposed(known + body)
    knobs = read_knobs(found.source)
    assert knobs.default == {"BLOCK": 512, "num_warps": 4}
    assert knobs.space["BLOCK"] == (256, 512)
    assert "# ours" in found.source
    assert '(x, y, n, (B), num_warps=CONFIG["num_warps"], )  # é' in found.source
    assert expose(found.source).found == (), "once is enough"


def test_too_many_knobs_are_left() -> None:
    kernels = "".join(KERNEL.replace("add_kernel", f"k{i}") for i in range(20))
    body = "".join(f"def f{i}(x, y, n):\n    k{i}[lambda m: (n // m['BLOCK'],)](x, y, n, BLOCK=64)\n" for i in range(20))
    found = exposed(body, kernels)
    assert len(read_knobs(found.source).default) == 32
    assert any("more than 32 knobs" in line for line in found.left)


def test_the_operator_exposes_all_in_one_step_or_says_why_not() -> None:
    context = Context("task", "", "f", "", frozenset(), "cuda:90", "3.9")

    def propose(source: str) -> Proposal | NoProposal:
        parent = Parent(Variant("task", source))
        return asyncio.run(ExposeKnobs().propose((parent,), context, np.random.default_rng(0)))

    made = propose(HEAD + KERNEL + WAYS["a rule"][0])
    assert isinstance(made, Proposal)
    assert made.strategy == "BLOCK, num_warps are knobs"
    again = propose(made.source)
    assert isinstance(again, NoProposal)
    assert "already" in again.reason
