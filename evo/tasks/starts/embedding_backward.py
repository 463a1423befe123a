"""Embedding gradient: one program per row of the table and block of columns adds up that row's tokens."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 512, "num_warps": 2}
SPACE = {"BLOCK": [128, 256, 512, 1024, 2048], "num_warps": [1, 2, 4, 8]}


@triton.jit
def embedding_backward_kernel(dy_ptr, order_ptr, starts_ptr, dweight_ptr, hidden, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < hidden
    first = tl.load(starts_ptr + row)
    end = tl.load(starts_ptr + row + 1)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for at in range(first, end):
        token = tl.load(order_ptr + at)
        total += tl.load(dy_ptr + token * hidden + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(dweight_ptr + row * hidden + columns, total, mask=mask)


def embedding_backward(dy, order, starts):
    hidden, vocabulary = dy.shape[1], starts.shape[0] - 1
    dweight = torch.empty((vocabulary, hidden), dtype=torch.float32, device=dy.device)
    grid = (vocabulary, triton.cdiv(hidden, CONFIG["BLOCK"]))
    embedding_backward_kernel[grid](dy, order, starts, dweight, hidden, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])
    return dweight
