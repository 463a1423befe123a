"""Average pooling: one block of outputs per program, which adds up its windows tap by tap."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 512, "num_warps": 4}
SPACE = {"BLOCK": [128, 256, 512, 1024, 2048], "num_warps": [1, 2, 4, 8]}


@triton.jit
def avg_pool2d_kernel(
    x_ptr, y_ptr, count, height, width, out_height, out_width, stride, padding, KERNEL: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    plane = at // (out_height * out_width) * (height * width)
    top = (at // out_width) % out_height * stride - padding
    left = at % out_width * stride - padding
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for tap in range(0, KERNEL * KERNEL):
        row = top + tap // KERNEL
        column = left + tap % KERNEL
        inside = (at < count) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        total += tl.load(x_ptr + plane + row * width + column, mask=inside, other=0.0).to(tl.float32)
    y = total / (KERNEL * KERNEL)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=at < count)


def avg_pool2d(x, kernel, stride, padding):
    images, channels, height, width = x.shape
    out_height = (height + 2 * padding - kernel) // stride + 1
    out_width = (width + 2 * padding - kernel) // stride + 1
    y = torch.empty((images, channels, out_height, out_width), dtype=x.dtype, device=x.device)
    count = y.numel()
    avg_pool2d_kernel[(triton.cdiv(count, CONFIG["BLOCK"]),)](
        x, y, count, height, width, out_height, out_width, stride, padding,
        KERNEL=kernel, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"],
    )  # fmt: skip
    return y
