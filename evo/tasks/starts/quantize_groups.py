"""Group-wise quantisation: some groups per program, each a row of its block."""

import torch
import triton
import triton.language as tl

CONFIG = {"ROWS": 8, "num_warps": 4}
SPACE = {"ROWS": [1, 2, 4, 8, 16, 32], "num_warps": [1, 2, 4, 8]}


@triton.jit
def quantize_groups_kernel(x_ptr, q_ptr, scales_ptr, groups, group, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    # Rows are whole numbers of groups, so that groups of the flattened matrix are those of its rows.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    offsets = row[:, None] * group + column[None, :]
    mask = (row[:, None] < groups) & (column[None, :] < group)
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-10) / 127.0
    level = tl.floor(x / scale[:, None] + 0.5)
    level = tl.minimum(tl.maximum(level, -127.0), 127.0)
    tl.store(q_ptr + offsets, level.to(tl.int8), mask=mask)
    tl.store(scales_ptr + row, scale, mask=row < groups)


def quantize_groups(x, group):
    rows, columns = x.shape
    q = torch.empty((rows, columns), dtype=torch.int8, device=x.device)
    scales = torch.empty((rows, columns // group), dtype=torch.float32, device=x.device)
    groups = scales.numel()
    quantize_groups_kernel[(triton.cdiv(groups, CONFIG["ROWS"]),)](
        x, q, scales, groups, group, ROWS=CONFIG["ROWS"], BLOCK=triton.next_power_of_2(group), num_warps=CONFIG["num_warps"]
    )
    return q, scales
