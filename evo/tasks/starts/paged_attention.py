"""Paged decoding attention: one program per sequence and kv head, its query heads as the rows of a block, a loop over tokens."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
SPACE = {"BLOCK_N": [16, 32, 64, 128, 256], "num_warps": [1, 2, 4, 8], "num_stages": [1, 2, 3, 4]}


@triton.jit
def paged_attention_kernel(
    q_ptr, keys_ptr, values_ptr, table_ptr, lengths_ptr, y_ptr, kv_heads, group, pages_per_sequence, scale,
    PAGE: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    q_offsets = ((sequence * kv_heads + kv_head) * group + rows[:, None]) * DIM + dims[None, :]
    q = tl.load(q_ptr + q_offsets, mask=rows[:, None] < group, other=0.0)
    length = tl.load(lengths_ptr + sequence)
    highest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    accumulator = tl.zeros((ROWS, DIM), dtype=tl.float32)
    for start in range(0, length, BLOCK_N):
        tokens = start + tl.arange(0, BLOCK_N)
        mask = tokens < length
        page = tl.load(table_ptr + sequence * pages_per_sequence + tokens // PAGE, mask=mask, other=0).to(tl.int64)
        offsets = ((page * PAGE + tokens % PAGE) * kv_heads + kv_head)[:, None] * DIM + dims[None, :]
        k = tl.load(keys_ptr + offsets, mask=mask[:, None], other=0.0)
        scores = tl.where(mask[None, :], tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, axis=1))
        shrink = tl.exp(highest - new_highest)
        weights = tl.exp(scores - new_highest[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        v = tl.load(values_ptr + offsets, mask=mask[:, None], other=0.0)
        accumulator = accumulator * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        highest = new_highest
    y = accumulator / total[:, None]
    tl.store(y_ptr + q_offsets, y.to(y_ptr.dtype.element_ty), mask=rows[:, None] < group)


def paged_attention(q, keys, values, table, lengths):
    batch, heads, dim = q.shape
    _, page, kv_heads, _ = keys.shape
    y = torch.empty((batch, heads, dim), dtype=q.dtype, device=q.device)
    paged_attention_kernel[(batch, kv_heads)](
        q, keys, values, table, lengths, y, kv_heads, heads // kv_heads, table.shape[1], dim**-0.5,
        PAGE=page, DIM=dim, ROWS=16, BLOCK_N=CONFIG["BLOCK_N"], num_warps=CONFIG["num_warps"], num_stages=CONFIG["num_stages"],
    )  # fmt: skip
    return y
