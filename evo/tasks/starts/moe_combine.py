"""Expert combination: one program per token and block of columns, a loop over its experts."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "num_warps": 4}
SPACE = {"BLOCK": [256, 512, 1024, 2048, 4096], "num_warps": [1, 2, 4, 8]}


@triton.jit
def moe_combine_kernel(rows_ptr, places_ptr, weights_ptr, y_ptr, hidden, K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < hidden
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in range(0, K):
        place = tl.load(places_ptr + token * K + choice).to(tl.int64)
        weight = tl.load(weights_ptr + token * K + choice)
        total += weight * tl.load(rows_ptr + place * hidden + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + token * hidden + columns, total.to(y_ptr.dtype.element_ty), mask=mask)


def moe_combine(rows, places, weights):
    tokens, k = places.shape
    hidden = rows.shape[1]
    y = torch.empty((tokens, hidden), dtype=rows.dtype, device=rows.device)
    grid = (tokens, triton.cdiv(hidden, CONFIG["BLOCK"]))
    moe_combine_kernel[grid](rows, places, weights, y, hidden, K=k, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])
    return y
