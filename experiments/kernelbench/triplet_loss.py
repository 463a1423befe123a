"""The triplet margin loss (margin 1): both distances of a row in one program, then the mean over rows in one."""

import torch
import triton
import triton.language as tl


@triton.jit
def rows_kernel(anchor_ptr, positive_ptr, negative_ptr, hinge_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    near = tl.zeros((BLOCK,), dtype=tl.float32)
    far = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < columns
        anchor = tl.load(anchor_ptr + row + at, mask=inside, other=0.0)
        to_positive = anchor - tl.load(positive_ptr + row + at, mask=inside, other=0.0) + 1e-6
        to_negative = anchor - tl.load(negative_ptr + row + at, mask=inside, other=0.0) + 1e-6
        near += tl.where(inside, to_positive * to_positive, 0.0)
        far += tl.where(inside, to_negative * to_negative, 0.0)
    hinge = 1.0 + tl.sqrt(tl.sum(near, axis=0)) - tl.sqrt(tl.sum(far, axis=0))
    tl.store(hinge_ptr + tl.program_id(0), tl.maximum(hinge, 0.0))


@triton.jit
def mean_kernel(hinge_ptr, loss_ptr, rows, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, rows, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(hinge_ptr + at, mask=at < rows, other=0.0)
    tl.store(loss_ptr, tl.sum(total, axis=0) / rows)


def forward(anchor, positive, negative):
    rows, columns = anchor.shape
    hinge = torch.empty((rows,), dtype=anchor.dtype, device=anchor.device)
    loss = torch.empty((), dtype=anchor.dtype, device=anchor.device)
    rows_kernel[(rows,)](anchor, positive, negative, hinge, columns, BLOCK=2048, num_warps=8)
    mean_kernel[(1,)](hinge, loss, rows, BLOCK=1024, num_warps=4)
    return loss
