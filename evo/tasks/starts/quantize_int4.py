"""4-bit quantisation: some groups per program, even and odd columns loaded apart and packed."""

import torch
import triton
import triton.language as tl

CONFIG = {"ROWS": 8, "num_warps": 4}
SPACE = {"ROWS": [1, 2, 4, 8, 16, 32], "num_warps": [1, 2, 4, 8]}


@triton.jit
def level_of(x, scale):
    level = tl.floor(x / scale + 0.5)
    return (tl.minimum(tl.maximum(level, -7.0), 7.0) + 8.0).to(tl.int32)


@triton.jit
def quantize_int4_kernel(x_ptr, packed_ptr, scales_ptr, groups, pairs, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    # Rows are whole numbers of groups, so that groups of the flattened matrix are those of its rows.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pair = tl.arange(0, BLOCK)
    offsets = row[:, None] * pairs + pair[None, :]
    mask = (row[:, None] < groups) & (pair[None, :] < pairs)
    even = tl.load(x_ptr + 2 * offsets, mask=mask, other=0.0).to(tl.float32)
    odd = tl.load(x_ptr + 2 * offsets + 1, mask=mask, other=0.0).to(tl.float32)
    largest = tl.max(tl.maximum(tl.abs(even), tl.abs(odd)), axis=1)
    scale = tl.maximum(largest, 1e-10) / 7.0
    packed = level_of(even, scale[:, None]) + 16 * level_of(odd, scale[:, None])
    tl.store(packed_ptr + offsets, packed.to(tl.uint8), mask=mask)
    tl.store(scales_ptr + row, scale, mask=row < groups)


def quantize_int4(x, group):
    rows, columns = x.shape
    packed = torch.empty((rows, columns // 2), dtype=torch.uint8, device=x.device)
    scales = torch.empty((rows, columns // group), dtype=torch.float32, device=x.device)
    groups = scales.numel()
    quantize_int4_kernel[(triton.cdiv(groups, CONFIG["ROWS"]),)](
        x, packed, scales, groups, group // 2,
        ROWS=CONFIG["ROWS"], BLOCK=triton.next_power_of_2(group // 2), num_warps=CONFIG["num_warps"],
    )  # fmt: skip
    return packed, scales
