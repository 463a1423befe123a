"""Embedding lookup: one program per token and block of columns."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "num_warps": 4}
SPACE = {"BLOCK": [256, 512, 1024, 2048, 4096, 8192], "num_warps": [1, 2, 4, 8]}


@triton.jit
def embedding_kernel(ids_ptr, weight_ptr, y_ptr, hidden, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < hidden
    row = tl.load(ids_ptr + token)
    values = tl.load(weight_ptr + row * hidden + columns, mask=mask)
    tl.store(y_ptr + token * hidden + columns, values, mask=mask)


def embedding(ids, weight):
    tokens, hidden = ids.shape[0], weight.shape[1]
    y = torch.empty((tokens, hidden), dtype=weight.dtype, device=weight.device)
    grid = (tokens, triton.cdiv(hidden, CONFIG["BLOCK"]))
    embedding_kernel[grid](ids, weight, y, hidden, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])
    return y
