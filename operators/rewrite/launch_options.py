"""Makes launch options that few kernels need knobs: how many registers a thread may have, how many blocks form a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from operators.edits import edited, unused, with_argument, with_knob
from operators.rewrite.base import Rewrite, Site
from operators.source import Launch, NotApplicableError, Source, knob_names

REGISTERS = [0, 64, 96, 128, 168, 255]
"""0: as the assembler likes."""
CLUSTERS = [1, 2, 4]


class LaunchOptions(Rewrite):
    """`maxnreg` becomes a knob, and `num_ctas` where a kernel multiplies matrices; both launch as before until tuning turns them.

    Fewer registers let more programs run at once, until values spill. A cluster of blocks shares loads of a tile over the
    network between multiprocessors, from compute capability 9.0 on; Triton 3.6 and later do without `num_ctas` on most kernels.
    """

    name = "launch_options"
    when = "Occupancy is limited by registers; or a product's operand tiles are loaded by several neighbours."
    cites = "PTX ISA, .maxnreg; CUDA C++ Programming Guide, thread block clusters."

    def check_target(self, target: str) -> None:
        """CUDA from compute capability 9.0 on."""
        backend, _, arch = target.partition(":")
        if backend != "cuda" or not arch.isdecimal() or int(arch) < 90:
            raise NotApplicableError(f"{target} has no clusters of blocks: cuda:90 has")

    def sites(self, source: Source) -> Iterator[Site]:
        """Up to two sites per launch."""
        for launch in source.launches:
            kernel = source.kernels[launch.kernel]
            if kernel.decorated or launch.unpacks:  # the dictionary may have the option already
                continue
            if "maxnreg" not in launch.arguments:
                yield Site(
                    f"the registers of {kernel.name} are a knob", partial(_option, source, launch, "maxnreg", 0, REGISTERS)
                )
            if "num_ctas" not in launch.arguments and "dot" in kernel.uses:
                yield Site(f"the cluster of {kernel.name} is a knob", partial(_option, source, launch, "num_ctas", 1, CLUSTERS))


def _option(source: Source, launch: Launch, option: str, default: int, choices: list[int]) -> cst.Module:
    knob = unused(option, knob_names(source.module))
    text = f'CONFIG["{knob}"]' + (" or None" if default == 0 else "")
    module = edited(source.module, [(launch.call, partial(with_argument, name=option, text=text))])
    return with_knob(module, knob, default, choices)
