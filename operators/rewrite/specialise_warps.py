"""Lets some warps of a matrix product's loop load while others multiply, on GPUs that have the hardware for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import libcst as cst

from operators.edits import edited, with_argument
from operators.rewrite.accesses import calls_of, keyword, loops
from operators.rewrite.base import Rewrite, Site
from operators.source import NotApplicableError, Source, code


class SpecialiseWarps(Rewrite):
    """`for k in range(…)` around a matrix product becomes `for k in tl.range(…, warp_specialize=True)`.

    The compiler gives loads, products and what follows to groups of warps of their own. It does so from compute capability 10.0 on
    (data-centre Blackwell), for simple loops around products; elsewhere the option is ignored, so it is not offered.
    """

    name = "specialise_warps"
    when = "Matrix products and attention on Blackwell whose loads and products do not overlap enough by stages alone."
    cites = "Triton documentation, tl.range (warp_specialize); Bauer et al., CudaDMA (SC 2011) for the idea."

    def check_target(self, target: str) -> None:
        """CUDA from compute capability 10.0 on."""
        backend, _, arch = target.partition(":")
        if backend != "cuda" or not arch.isdecimal() or not 100 <= int(arch) < 120:
            raise NotApplicableError(f"{target} has no tensor memory, which warp specialisation in Triton needs: cuda:100 has")

    def sites(self, source: Source) -> Iterator[Site]:
        """One site per innermost loop around a product."""
        for kernel in source.kernels.values():
            for loop in loops(kernel):
                inner = any(other is not loop and code(other) in code(loop) for other in loops(kernel))
                call = cst.ensure_type(loop.iter, cst.Call)
                if calls_of(loop.body, "dot") and not inner and keyword(call, "warp_specialize") is None:
                    strategy = f"warps of {kernel.name} load or multiply in its loop over {code(loop.target)}"
                    yield Site(strategy, partial(_rewrite, source, call))


def _rewrite(source: Source, call: cst.Call) -> cst.Module:
    module = edited(source.module, [(call, _specialised)])
    assert isinstance(module, cst.Module)
    return module


def _specialised(call: Any) -> Any:
    return with_argument(call.with_changes(func=cst.parse_expression("tl.range")), "warp_specialize", "True")
