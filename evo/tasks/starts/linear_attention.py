"""Linear attention: one program per head and block of value columns walks over chunks of tokens with the state in registers."""

import torch
import triton
import triton.language as tl

CONFIG = {"CHUNK": 64, "BLOCK_V": 32, "num_warps": 4, "num_stages": 2}
SPACE = {"CHUNK": [16, 32, 64, 128], "BLOCK_V": [16, 32, 64], "num_warps": [2, 4, 8], "num_stages": [1, 2, 3]}


@triton.jit
def linear_attention_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, length, scale, DIM: tl.constexpr, CHUNK: tl.constexpr, BLOCK_V: tl.constexpr
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64) * length * DIM
    dims = tl.arange(0, DIM)
    columns = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    within = tl.arange(0, CHUNK)
    state = tl.zeros((DIM, BLOCK_V), dtype=tl.float32)
    for start in range(0, length, CHUNK):
        rows = start + within
        mask = rows[:, None] < length
        offsets = head + rows[:, None] * DIM + dims[None, :]
        q = tl.load(q_ptr + offsets, mask=mask, other=0.0)
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v_mask = mask & (columns[None, :] < DIM)
        v_offsets = head + rows[:, None] * DIM + columns[None, :]
        v = tl.load(v_ptr + v_offsets, mask=v_mask, other=0.0)
        scores = tl.dot(q, tl.trans(k))
        scores = tl.where(within[:, None] >= within[None, :], scores, 0.0)
        y = tl.dot(scores.to(v.dtype), v)
        y = tl.dot(q, state.to(q.dtype), y)
        tl.store(y_ptr + v_offsets, (y * scale).to(y_ptr.dtype.element_ty), mask=v_mask)
        state = tl.dot(tl.trans(k), v, state)


def linear_attention(q, k, v):
    batch, heads, length, dim = q.shape
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    block_v = min(CONFIG["BLOCK_V"], dim)
    linear_attention_kernel[(triton.cdiv(dim, block_v), batch * heads)](
        q, k, v, y, length, dim**-0.5, DIM=dim, CHUNK=CONFIG["CHUNK"], BLOCK_V=block_v,
        num_warps=CONFIG["num_warps"], num_stages=CONFIG["num_stages"],
    )  # fmt: skip
    return y
