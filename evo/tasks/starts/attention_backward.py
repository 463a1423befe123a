"""Attention backward in three kernels: statistics of the softmax; dk and dv per block of keys; dq per block of queries."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
SPACE = {"BLOCK_M": [32, 64, 128], "BLOCK_N": [32, 64, 128], "num_warps": [4, 8], "num_stages": [1, 2, 3]}


@triton.jit
def statistics_kernel(
    dy_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, length, scale, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    # Per query: log-sum-exp of the scores, and the sum of weights times dy vᵀ.
    first = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1).to(tl.int64) * length
    rows = first + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, DIM)
    row_offsets = (head + rows[:, None]) * DIM + dims[None, :]
    q = tl.load(q_ptr + row_offsets, mask=rows[:, None] < length, other=0.0)
    dy = tl.load(dy_ptr + row_offsets, mask=rows[:, None] < length, other=0.0)
    highest = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    weighted = tl.zeros((BLOCK_M,), dtype=tl.float32)
    for start in range(0, first + BLOCK_M, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        offsets = (head + columns[:, None]) * DIM + dims[None, :]
        k = tl.load(k_ptr + offsets, mask=columns[:, None] < length, other=0.0)
        v = tl.load(v_ptr + offsets, mask=columns[:, None] < length, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(columns[None, :] <= rows[:, None], scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, axis=1))
        shrink = tl.exp(highest - new_highest)
        weights = tl.exp(scores - new_highest[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        weighted = weighted * shrink + tl.sum(weights * tl.dot(dy, tl.trans(v)), axis=1)
        highest = new_highest
    tl.store(lse_ptr + head + rows, highest + tl.log(total), mask=rows < length)
    tl.store(delta_ptr + head + rows, weighted / total, mask=rows < length)


@triton.jit
def keys_kernel(
    dy_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, length, scale,
    DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BLOCK_N
    head = tl.program_id(1).to(tl.int64) * length
    columns = first + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, DIM)
    column_offsets = (head + columns[:, None]) * DIM + dims[None, :]
    k = tl.load(k_ptr + column_offsets, mask=columns[:, None] < length, other=0.0)
    v = tl.load(v_ptr + column_offsets, mask=columns[:, None] < length, other=0.0)
    dk = tl.zeros((BLOCK_N, DIM), dtype=tl.float32)
    dv = tl.zeros((BLOCK_N, DIM), dtype=tl.float32)
    for start in range(first // BLOCK_M * BLOCK_M, length, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        row_offsets = (head + rows[:, None]) * DIM + dims[None, :]
        q = tl.load(q_ptr + row_offsets, mask=rows[:, None] < length, other=0.0)
        dy = tl.load(dy_ptr + row_offsets, mask=rows[:, None] < length, other=0.0)
        lse = tl.load(lse_ptr + head + rows, mask=rows < length, other=0.0)
        delta = tl.load(delta_ptr + head + rows, mask=rows < length, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        seen = (columns[None, :] <= rows[:, None]) & (rows[:, None] < length)
        weights = tl.where(seen, tl.exp(scores - lse[:, None]), 0.0)
        dv = tl.dot(tl.trans(weights.to(dy.dtype)), dy, dv)
        dscores = weights * (tl.dot(dy, tl.trans(v)) - delta[:, None]) * scale
        dk = tl.dot(tl.trans(dscores.to(q.dtype)), q, dk)
    tl.store(dk_ptr + column_offsets, dk.to(dk_ptr.dtype.element_ty), mask=columns[:, None] < length)
    tl.store(dv_ptr + column_offsets, dv.to(dv_ptr.dtype.element_ty), mask=columns[:, None] < length)


@triton.jit
def queries_kernel(
    dy_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, dq_ptr, length, scale,
    DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1).to(tl.int64) * length
    rows = first + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, DIM)
    row_offsets = (head + rows[:, None]) * DIM + dims[None, :]
    q = tl.load(q_ptr + row_offsets, mask=rows[:, None] < length, other=0.0)
    dy = tl.load(dy_ptr + row_offsets, mask=rows[:, None] < length, other=0.0)
    lse = tl.load(lse_ptr + head + rows, mask=rows < length, other=0.0)
    delta = tl.load(delta_ptr + head + rows, mask=rows < length, other=0.0)
    dq = tl.zeros((BLOCK_M, DIM), dtype=tl.float32)
    for start in range(0, first + BLOCK_M, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        offsets = (head + columns[:, None]) * DIM + dims[None, :]
        k = tl.load(k_ptr + offsets, mask=columns[:, None] < length, other=0.0)
        v = tl.load(v_ptr + offsets, mask=columns[:, None] < length, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        seen = (columns[None, :] <= rows[:, None]) & (rows[:, None] < length)
        weights = tl.where(seen, tl.exp(scores - lse[:, None]), 0.0)
        dscores = weights * (tl.dot(dy, tl.trans(v)) - delta[:, None]) * scale
        dq = tl.dot(dscores.to(k.dtype), k, dq)
    tl.store(dq_ptr + row_offsets, dq.to(dq_ptr.dtype.element_ty), mask=rows[:, None] < length)


def attention_backward(dy, q, k, v):
    batch, heads, length, dim = q.shape
    block_m, block_n = CONFIG["BLOCK_M"], CONFIG["BLOCK_N"]
    options = {
        "DIM": dim, "BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": CONFIG["num_warps"], "num_stages": CONFIG["num_stages"]
    }  # fmt: skip
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    dk = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    dv = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, length), dtype=torch.float32, device=q.device)
    delta = torch.empty((batch, heads, length), dtype=torch.float32, device=q.device)
    by_queries = (triton.cdiv(length, block_m), batch * heads)
    by_keys = (triton.cdiv(length, block_n), batch * heads)
    scale = dim**-0.5
    statistics_kernel[by_queries](dy, q, k, v, lse, delta, length, scale, **options)
    keys_kernel[by_keys](dy, q, k, v, lse, delta, dk, dv, length, scale, **options)
    queries_kernel[by_queries](dy, q, k, v, lse, delta, dq, length, scale, **options)
    return dq, dk, dv
