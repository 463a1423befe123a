# ruff: noqa: N803, D103
"""Causal attention with online softmax: one block of queries per program; the longest rows first, or last."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK_M": 64, "BLOCK_N": 64, "LONGEST_FIRST": 0, "num_warps": 4, "num_stages": 2}
SPACE = {
    "BLOCK_M": [32, 64, 128],
    "BLOCK_N": [16, 32, 64, 128],
    "LONGEST_FIRST": [0, 1],
    "num_warps": [2, 4, 8],
    "num_stages": [1, 2, 3, 4],
}


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, length, scale,
    DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LONGEST_FIRST: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    if LONGEST_FIRST:
        block = tl.num_programs(0) - 1 - block
    first = block * BLOCK_M
    head = tl.program_id(1).to(tl.int64) * length * DIM
    rows = first + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, DIM)
    row_offsets = head + rows[:, None] * DIM + dims[None, :]
    q = tl.load(q_ptr + row_offsets, mask=rows[:, None] < length, other=0.0)
    highest = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    accumulator = tl.zeros((BLOCK_M, DIM), dtype=tl.float32)
    for start in range(0, first + BLOCK_M, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        offsets = head + columns[:, None] * DIM + dims[None, :]
        k = tl.load(k_ptr + offsets, mask=columns[:, None] < length, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(columns[None, :] <= rows[:, None], scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, axis=1))
        shrink = tl.exp(highest - new_highest)
        weights = tl.exp(scores - new_highest[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        v = tl.load(v_ptr + offsets, mask=columns[:, None] < length, other=0.0)
        accumulator = accumulator * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        highest = new_highest
    y = accumulator / total[:, None]
    tl.store(y_ptr + row_offsets, y.to(y_ptr.dtype.element_ty), mask=rows[:, None] < length)


def attention(q, k, v):
    batch, heads, length, dim = q.shape
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    attention_kernel[lambda meta: (triton.cdiv(length, meta["BLOCK_M"]), batch * heads)](
        q, k, v, y, length, dim**-0.5, DIM=dim, **CONFIG
    )
    return y
