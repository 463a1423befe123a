"""Kullback-Leibler divergence: one program per row, a loop over the vocabulary."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 2048, "num_warps": 8}
SPACE = {"BLOCK": [512, 1024, 2048, 4096, 8192], "num_warps": [4, 8, 16]}


@triton.jit
def kl_divergence_kernel(log_q_ptr, p_ptr, y_ptr, vocabulary, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, vocabulary, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < vocabulary
        log_q = tl.load(log_q_ptr + row * vocabulary + columns, mask=mask, other=0.0)
        p = tl.load(p_ptr + row * vocabulary + columns, mask=mask, other=0.0)
        total += tl.where(p > 0.0, p * (tl.log(tl.where(p > 0.0, p, 1.0)) - log_q), 0.0)
    tl.store(y_ptr + row, tl.sum(total, axis=0))


def kl_divergence(log_q, p):
    tokens, vocabulary = log_q.shape
    y = torch.empty((tokens,), dtype=torch.float32, device=log_q.device)
    kl_divergence_kernel[(tokens,)](log_q, p, y, vocabulary, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])
    return y
