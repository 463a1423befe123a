"""Gradient of cross-entropy: one program per row, a pass for maximum and sum, a second one that writes the gradient."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 2048, "num_warps": 8}
SPACE = {"BLOCK": [1024, 2048, 4096, 8192, 16384], "num_warps": [4, 8, 16]}


@triton.jit
def cross_entropy_backward_kernel(dloss_ptr, logits_ptr, labels_ptr, dlogits_ptr, vocabulary, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first = row * vocabulary
    highest = tl.full((), float("-inf"), dtype=tl.float32)
    total = tl.zeros((), dtype=tl.float32)
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + first + columns, mask=columns < vocabulary, other=float("-inf")).to(tl.float32)
        new_highest = tl.maximum(highest, tl.max(x, axis=0))
        total = total * tl.exp(highest - new_highest) + tl.sum(tl.exp(x - new_highest), axis=0)
        highest = new_highest

    label = tl.load(labels_ptr + row)
    dloss = tl.load(dloss_ptr + row)
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < vocabulary
        x = tl.load(logits_ptr + first + columns, mask=mask, other=float("-inf")).to(tl.float32)
        gradient = tl.exp(x - highest) / total - tl.where(columns == label, 1.0, 0.0)
        tl.store(dlogits_ptr + first + columns, (gradient * dloss).to(dlogits_ptr.dtype.element_ty), mask=mask)


def cross_entropy_backward(dloss, logits, labels):
    tokens, vocabulary = logits.shape
    dlogits = torch.empty((tokens, vocabulary), dtype=logits.dtype, device=logits.device)
    cross_entropy_backward_kernel[(tokens,)](
        dloss, logits, labels, dlogits, vocabulary, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"]
    )
    return dlogits
