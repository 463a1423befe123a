"""What others published for these suites, beside our rows and never mixed with them: on their hardware, by their definitions."""

from __future__ import annotations

from dataclasses import dataclass

from evo.plain import Record


@dataclass(frozen=True)
class Peer(Record):
    """One published row; shares in percent, None where not published.

    Attributes:
        suites: Names of the suites that it is about.
        system, hardware: Whose, on what.
        call, execution: Accuracy.
        speedup: As they define it.
        note: What to know before comparing.
        source: Where it was published.
    """

    suites: tuple[str, ...]
    system: str
    hardware: str
    call: float | None
    execution: float | None
    speedup: str
    note: str
    source: str


GEAK = "GEAK: Introducing Triton Kernel AI Agent & Evaluation Benchmarks, arXiv:2507.23194, and the repository AMD-AGI/GEAK-agent"
AUTOTRITON = "AutoTriton, arXiv:2507.05687"
TRITONGEN = "TritonGen's published runs"
SUCCESSES = "mean over successes alone; one shape scored; speedups of 10× and more are dropped"
PEERS: tuple[Peer, ...] = (
    Peer(("tritonbench-revised",), "GEAK v1", "AMD MI300X", None, 54.89, "2.59×", SUCCESSES, GEAK),
    Peer(("tritonbench-revised",), "GEAK v2", "AMD MI300X", None, 63.04, "5.31×", SUCCESSES, GEAK),
    Peer(("tritonbench-revised",), "GEAK's OpenEvolve branch", "AMD MI300X", None, None, "3.42×", SUCCESSES, GEAK),
    Peer(("rocm",), "GEAK v1", "AMD MI300X", None, 63.33, "0.92×", f"30 kernels; {SUCCESSES}", GEAK),
    Peer(("rocm",), "GEAK v2", "AMD MI300X", None, 61.29, "1.74×", f"31 kernels; {SUCCESSES}", GEAK),
    Peer(("rocm",), "GEAK's OpenEvolve branch", "AMD MI300X", None, None, "7.02×", SUCCESSES, GEAK),
    Peer(("rocm",), "GEAK v3", "AMD MI355", None, None, "2.22×", "geometric mean over 17 Triton kernels", GEAK),
    Peer(("tritonbench-g",), "AutoTriton 8B", "not known to us", 15.76, 15.76, "", "from instructions, one sample", AUTOTRITON),
    Peer(("tritonbench-t",), "AutoTriton 8B", "not known to us", 40.36, 39.16, "", "from instructions, one sample", AUTOTRITON),
    Peer(("kernelbench-1",), "AutoTriton 8B", "not known to us", 83.0, 36.0, "", "call is the share that compiles", AUTOTRITON),
    Peer(("kernelbench-2",), "AutoTriton 8B", "not known to us", 97.0, 45.0, "", "call is the share that compiles", AUTOTRITON),
    Peer(
        ("tritonbench-g", "tritonbench-t", "kernelbench-1", "kernelbench-2"), "TritonGen", "not known to us", None, None, "",
        "grammar-constrained decoding with feedback, five rounds; no figure on this suite is known to us", TRITONGEN,
    ),
)  # fmt: skip


def peers_of(suite: str) -> tuple[Peer, ...]:
    """Rows about a suite."""
    return tuple(peer for peer in PEERS if suite in peer.suites)
