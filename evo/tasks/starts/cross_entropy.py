"""Cross-entropy per row: one program per row, one pass over the vocabulary with a running maximum and sum."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 2048, "num_warps": 8}
SPACE = {"BLOCK": [1024, 2048, 4096, 8192, 16384], "num_warps": [4, 8, 16]}


@triton.jit
def cross_entropy_kernel(logits_ptr, labels_ptr, loss_ptr, vocabulary, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start_of_row = logits_ptr + row * vocabulary
    highest = tl.full((), float("-inf"), dtype=tl.float32)
    total = tl.zeros((), dtype=tl.float32)
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(start_of_row + columns, mask=columns < vocabulary, other=float("-inf")).to(tl.float32)
        new_highest = tl.maximum(highest, tl.max(x, axis=0))
        total = total * tl.exp(highest - new_highest) + tl.sum(tl.exp(x - new_highest), axis=0)
        highest = new_highest
    label = tl.load(labels_ptr + row)
    chosen = tl.load(start_of_row + label).to(tl.float32)
    tl.store(loss_ptr + row, tl.log(total) + (highest - chosen))


def cross_entropy(logits, labels):
    tokens, vocabulary = logits.shape
    loss = torch.empty((tokens,), dtype=torch.float32, device=logits.device)
    cross_entropy_kernel[(tokens,)](logits, labels, loss, vocabulary, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])
    return loss
