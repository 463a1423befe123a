"""An autotuned split-K matrix-vector product whose atomics need the output zeroed: reset_to_zero while tuning, a zero_ per call."""

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64, "SPLIT": 2}, num_warps=2), triton.Config({"BLOCK": 128, "SPLIT": 4}, num_warps=4)],
    key=["K"],
    reset_to_zero=["y_ptr"],
)
@triton.heuristics({"EVEN": lambda args: args["K"] % (args["BLOCK"] * args["SPLIT"]) == 0})
@triton.jit
def matvec(a_ptr, x_ptr, y_ptr, K, BLOCK: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr):
    row = tl.program_id(0)
    part = tl.program_id(1)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(part * BLOCK, K, BLOCK * SPLIT):
        k = start + tl.arange(0, BLOCK)
        if EVEN:
            total += tl.load(a_ptr + row * K + k) * tl.load(x_ptr + k)
        else:
            total += tl.load(a_ptr + row * K + k, mask=k < K, other=0.0) * tl.load(x_ptr + k, mask=k < K, other=0.0)
    tl.atomic_add(y_ptr + row, tl.sum(total, axis=0))


def entry(a, x):
    y = torch.zeros(a.shape[0], dtype=torch.float32, device=a.device)
    matvec[lambda meta: (a.shape[0], meta["SPLIT"])](a, x, y, a.shape[1])
    return y
