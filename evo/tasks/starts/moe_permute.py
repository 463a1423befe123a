"""Expert permutation: one program per row of the result and block of columns."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "num_warps": 4}
SPACE = {"BLOCK": [256, 512, 1024, 2048, 4096, 8192], "num_warps": [1, 2, 4, 8]}


@triton.jit
def moe_permute_kernel(x_ptr, order_ptr, y_ptr, hidden, k, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < hidden
    token = (tl.load(order_ptr + row) // k).to(tl.int64)
    values = tl.load(x_ptr + token * hidden + columns, mask=mask)
    tl.store(y_ptr + row * hidden + columns, values, mask=mask)


def moe_permute(x, order, k):
    rows, hidden = order.shape[0], x.shape[1]
    y = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    grid = (rows, triton.cdiv(hidden, CONFIG["BLOCK"]))
    moe_permute_kernel[grid](x, order, y, hidden, k, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])
    return y
