"""Group normalisation with SiLU: one program per image and group, three passes over its elements."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "num_warps": 4}
SPACE = {"BLOCK": [512, 1024, 2048, 4096, 8192], "num_warps": [2, 4, 8, 16]}


@triton.jit
def group_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, groups, channels_per_group, pixels, eps, BLOCK: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0)
    first_channel = (program % groups) * channels_per_group
    count = channels_per_group * pixels
    start_of_group = program.to(tl.int64) * count

    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + start_of_group + at, mask=at < count, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / count

    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start_of_group + at, mask=at < count, other=0.0).to(tl.float32)
        centred = tl.where(at < count, x - mean, 0.0)
        squares += centred * centred
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / count + eps)

    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < count
        channel = first_channel + at // pixels
        x = tl.load(x_ptr + start_of_group + at, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + channel, mask=mask, other=0.0).to(tl.float32)
        bias = tl.load(bias_ptr + channel, mask=mask, other=0.0).to(tl.float32)
        z = (x - mean) * scale * weight + bias
        y = z * tl.sigmoid(z)
        tl.store(y_ptr + start_of_group + at, y.to(y_ptr.dtype.element_ty), mask=mask)


def group_norm(x, weight, bias, groups, eps):
    images, channels, height, width = x.shape
    y = torch.empty((images, channels, height, width), dtype=x.dtype, device=x.device)
    group_norm_kernel[(images * groups,)](
        x, weight, bias, y, groups, channels // groups, height * width, eps, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"]
    )
    return y
