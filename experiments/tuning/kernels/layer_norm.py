# ruff: noqa: N803, D103
"""Layer normalisation: whole rows in a tile, several tiles per program, weight and bias read once."""

import torch
import triton
import triton.language as tl

CONFIG = {"TILES": 1, "ROWS": 1, "STAGES": 1, "KEEP": 0, "num_warps": 8}
SPACE = {
    "TILES": [1, 2, 4, 8],
    "ROWS": [1, 2, 4],
    "STAGES": [1, 2, 3],
    "KEEP": [0, 1],
    "num_warps": [2, 4, 8, 16],
}


@triton.jit
def layer_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, n_rows, hidden, eps,
    WIDTH: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, WIDTH)[None, :]
    column_mask = columns < hidden
    policy: tl.constexpr = "evict_last" if KEEP else ""
    weight = tl.load(weight_ptr + columns, mask=column_mask, other=0.0, eviction_policy=policy).to(tl.float32)
    bias = tl.load(bias_ptr + columns, mask=column_mask, other=0.0, eviction_policy=policy).to(tl.float32)
    begin = tl.program_id(0) * TILES * ROWS
    for tile in tl.range(0, TILES, num_stages=STAGES):
        rows = begin + tile * ROWS + tl.arange(0, ROWS)[:, None]
        offsets = rows.to(tl.int64) * hidden + columns
        mask = (rows < n_rows) & column_mask
        x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        mean = tl.sum(x, axis=1, keep_dims=True) / hidden
        centred = tl.where(column_mask, x - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1, keep_dims=True) / hidden + eps)
        tl.store(y_ptr + offsets, (centred * scale * weight + bias).to(y_ptr.dtype.element_ty), mask=mask)


def layer_norm(x, weight, bias, eps):
    rows, hidden = x.shape
    y = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    layer_norm_kernel[lambda meta: (triton.cdiv(rows, meta["TILES"] * meta["ROWS"]),)](
        x, weight, bias, y, rows, hidden, eps, WIDTH=triton.next_power_of_2(hidden), **CONFIG
    )
    return y
