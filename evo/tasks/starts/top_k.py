"""Top-k per row: one program per block of rows takes the largest k times over, and takes each out."""

import torch
import triton
import triton.language as tl

CONFIG = {"ROWS": 4, "num_warps": 4}
SPACE = {"ROWS": [1, 2, 4, 8, 16, 32], "num_warps": [1, 2, 4, 8]}


@triton.jit
def top_k_kernel(x_ptr, values_ptr, places_ptr, rows, columns, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    row_mask = row < rows
    mask = row_mask[:, None] & (column[None, :] < columns)
    x = tl.load(x_ptr + row[:, None] * columns + column[None, :], mask=mask, other=float("-inf"))
    for rank in range(0, K):
        highest = tl.max(x, axis=1)
        place = tl.min(tl.where(x == highest[:, None], column[None, :], BLOCK), axis=1)
        # From the row itself, so that the sign of a zero is that of the element which was chosen.
        chosen = column[None, :] == place[:, None]
        value = tl.sum(tl.where(chosen, x, 0.0), axis=1)
        tl.store(values_ptr + row * K + rank, value, mask=row_mask)
        tl.store(places_ptr + row * K + rank, place, mask=row_mask)
        x = tl.where(chosen, float("-inf"), x)


def top_k(x, k):
    rows, columns = x.shape
    values = torch.empty((rows, k), dtype=x.dtype, device=x.device)
    places = torch.empty((rows, k), dtype=torch.int32, device=x.device)
    top_k_kernel[(triton.cdiv(rows, CONFIG["ROWS"]),)](
        x,
        values,
        places,
        rows,
        columns,
        K=k,
        ROWS=CONFIG["ROWS"],
        BLOCK=triton.next_power_of_2(columns),
        num_warps=CONFIG["num_warps"],
    )
    return values, places
