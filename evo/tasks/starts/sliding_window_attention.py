"""Sliding-window attention with online softmax: one block of queries per program, a loop over the blocks of keys in its window."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
SPACE = {"BLOCK_M": [32, 64, 128], "BLOCK_N": [32, 64, 128], "num_warps": [4, 8], "num_stages": [1, 2, 3, 4]}


@triton.jit
def sliding_window_attention_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, heads, group, length, window, scale, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    first = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1)
    kv_head = ((head // heads) * (heads // group) + (head % heads) // group).to(tl.int64) * length
    rows = first + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, DIM)
    row_offsets = (head.to(tl.int64) * length + rows[:, None]) * DIM + dims[None, :]
    q = tl.load(q_ptr + row_offsets, mask=rows[:, None] < length, other=0.0)

    # Finite, so that a block with nothing to see for some row leaves no NaN there.
    highest = tl.full((BLOCK_M,), -1e30, dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    accumulator = tl.zeros((BLOCK_M, DIM), dtype=tl.float32)
    begin = tl.maximum(first - window + 1, 0) // BLOCK_N * BLOCK_N
    for start in range(begin, first + BLOCK_M, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        offsets = (kv_head + columns[:, None]) * DIM + dims[None, :]
        k = tl.load(k_ptr + offsets, mask=columns[:, None] < length, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        seen = (columns[None, :] <= rows[:, None]) & (columns[None, :] > rows[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, axis=1))
        shrink = tl.exp(highest - new_highest)
        weights = tl.exp(scores - new_highest[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        v = tl.load(v_ptr + offsets, mask=columns[:, None] < length, other=0.0)
        accumulator = accumulator * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        highest = new_highest

    # Rows beyond the length may have seen nothing.
    y = accumulator / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(y_ptr + row_offsets, y.to(y_ptr.dtype.element_ty), mask=rows[:, None] < length)


def sliding_window_attention(q, k, v, window):
    batch, heads, length, dim = q.shape
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    grid = (triton.cdiv(length, CONFIG["BLOCK_M"]), batch * heads)
    sliding_window_attention_kernel[grid](
        q, k, v, y, heads, heads // k.shape[1], length, window, dim**-0.5,
        DIM=dim, BLOCK_M=CONFIG["BLOCK_M"], BLOCK_N=CONFIG["BLOCK_N"],
        num_warps=CONFIG["num_warps"], num_stages=CONFIG["num_stages"],
    )  # fmt: skip
    return y
