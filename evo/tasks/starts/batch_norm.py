"""Batch normalisation in training: one program per channel, three passes over its images."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "num_warps": 4}
SPACE = {"BLOCK": [256, 512, 1024, 2048, 4096], "num_warps": [2, 4, 8, 16]}


@triton.jit
def batch_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, running_mean_ptr, running_var_ptr, y_ptr, images, channels, pixels, momentum, eps, BLOCK: tl.constexpr
):  # fmt: skip
    channel = tl.program_id(0)
    count = images * pixels

    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        offsets = ((at // pixels) * channels + channel).to(tl.int64) * pixels + at % pixels
        total += tl.load(x_ptr + offsets, mask=at < count, other=0.0)
    mean = tl.sum(total, axis=0) / count

    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        offsets = ((at // pixels) * channels + channel).to(tl.int64) * pixels + at % pixels
        x = tl.load(x_ptr + offsets, mask=at < count, other=0.0)
        centred = tl.where(at < count, x - mean, 0.0)
        squares += centred * centred
    variance = tl.sum(squares, axis=0) / count
    scale = tl.load(weight_ptr + channel) / tl.sqrt(variance + eps)
    bias = tl.load(bias_ptr + channel)

    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        offsets = ((at // pixels) * channels + channel).to(tl.int64) * pixels + at % pixels
        x = tl.load(x_ptr + offsets, mask=at < count, other=0.0)
        tl.store(y_ptr + offsets, (x - mean) * scale + bias, mask=at < count)

    running_mean = tl.load(running_mean_ptr + channel)
    running_var = tl.load(running_var_ptr + channel)
    unbiased = variance * count / (count - 1)
    tl.store(running_mean_ptr + channel, (1.0 - momentum) * running_mean + momentum * mean)
    tl.store(running_var_ptr + channel, (1.0 - momentum) * running_var + momentum * unbiased)


def batch_norm(x, weight, bias, running_mean, running_var, momentum, eps):
    images, channels, height, width = x.shape
    y = torch.empty((images, channels, height, width), dtype=x.dtype, device=x.device)
    batch_norm_kernel[(channels,)](
        x, weight, bias, running_mean, running_var, y, images, channels, height * width, momentum, eps,
        BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"],
    )  # fmt: skip
    return y
