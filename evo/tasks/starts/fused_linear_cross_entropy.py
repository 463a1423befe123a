"""Linear layer and cross-entropy: programs take blocks of tokens and parts of the vocabulary; a second kernel joins the parts."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "PARTS": 8, "num_warps": 4, "num_stages": 3}
SPACE = {
    "BLOCK_M": [16, 32, 64, 128],
    "BLOCK_N": [64, 128, 256],
    "BLOCK_K": [32, 64, 128],
    "PARTS": [1, 2, 4, 8, 16, 32],
    "num_warps": [4, 8],
    "num_stages": [2, 3, 4],
}


@triton.jit
def parts_kernel(
    x_ptr, weight_ptr, labels_ptr, highest_ptr, total_ptr, chosen_ptr, tokens, hidden, vocabulary, part_size,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    part = tl.program_id(1)
    row_mask = rows < tokens
    labels = tl.load(labels_ptr + rows, mask=row_mask, other=0)
    highest = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    chosen = tl.zeros((BLOCK_M,), dtype=tl.float32)
    end = min((part + 1) * part_size, vocabulary)
    for first in range(part * part_size, end, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        logits = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for start in range(0, hidden, BLOCK_K):
            inner = start + tl.arange(0, BLOCK_K)
            inner_mask = inner < hidden
            x = tl.load(x_ptr + rows[:, None] * hidden + inner[None, :], mask=row_mask[:, None] & inner_mask[None, :], other=0.0)
            weight_offsets = columns[None, :].to(tl.int64) * hidden + inner[:, None]
            weight = tl.load(weight_ptr + weight_offsets, mask=inner_mask[:, None] & (columns[None, :] < end), other=0.0)
            logits = tl.dot(x, weight, logits)
        logits = tl.where(columns[None, :] < end, logits, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(logits, axis=1))
        total = total * tl.exp(highest - new_highest) + tl.sum(tl.exp(logits - new_highest[:, None]), axis=1)
        highest = new_highest
        here = (columns[None, :] == labels[:, None]) & (columns[None, :] < end)
        chosen += tl.sum(tl.where(here, logits, 0.0), axis=1)
    tl.store(highest_ptr + part * tokens + rows, highest, mask=row_mask)
    tl.store(total_ptr + part * tokens + rows, total, mask=row_mask)
    tl.store(chosen_ptr + part * tokens + rows, chosen, mask=row_mask)


@triton.jit
def join_kernel(highest_ptr, total_ptr, chosen_ptr, loss_ptr, tokens, parts, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = rows < tokens
    highest = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    chosen = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(0, parts):
        offsets = part * tokens + rows
        part_highest = tl.load(highest_ptr + offsets, mask=mask, other=0.0)
        new_highest = tl.maximum(highest, part_highest)
        part_total = tl.load(total_ptr + offsets, mask=mask, other=0.0)
        total = total * tl.exp(highest - new_highest) + part_total * tl.exp(part_highest - new_highest)
        highest = new_highest
        chosen += tl.load(chosen_ptr + offsets, mask=mask, other=0.0)
    tl.store(loss_ptr + rows, tl.log(total) + (highest - chosen), mask=mask)


def fused_linear_cross_entropy(x, weight, labels):
    tokens, hidden = x.shape
    vocabulary = weight.shape[0]
    part_size = triton.cdiv(vocabulary, CONFIG["PARTS"])
    parts = triton.cdiv(vocabulary, part_size)
    highest = torch.empty((parts, tokens), dtype=torch.float32, device=x.device)
    total = torch.empty((parts, tokens), dtype=torch.float32, device=x.device)
    chosen = torch.empty((parts, tokens), dtype=torch.float32, device=x.device)
    loss = torch.empty((tokens,), dtype=torch.float32, device=x.device)
    parts_kernel[(triton.cdiv(tokens, CONFIG["BLOCK_M"]), parts)](
        x, weight, labels, highest, total, chosen, tokens, hidden, vocabulary, part_size,
        BLOCK_M=CONFIG["BLOCK_M"], BLOCK_N=CONFIG["BLOCK_N"], BLOCK_K=CONFIG["BLOCK_K"],
        num_warps=CONFIG["num_warps"], num_stages=CONFIG["num_stages"],
    )  # fmt: skip
    join_kernel[(triton.cdiv(tokens, 256),)](highest, total, chosen, loss, tokens, parts, BLOCK=256, num_warps=4)
    return loss
