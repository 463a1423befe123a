"""AdamW: one block of elements per program."""

import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "num_warps": 4}
SPACE = {"BLOCK": [256, 512, 1024, 2048, 4096], "num_warps": [1, 2, 4, 8]}


@triton.jit
def adamw_kernel(
    weights_ptr, gradient_ptr, first_ptr, second_ptr, count, lr, keep, beta1, beta2, rest1, rest2, correction1, correction2, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    weights = tl.load(weights_ptr + offsets, mask=mask, other=0.0)
    gradient = tl.load(gradient_ptr + offsets, mask=mask, other=0.0)
    first = tl.load(first_ptr + offsets, mask=mask, other=0.0)
    second = tl.load(second_ptr + offsets, mask=mask, other=0.0)
    first = beta1 * first + rest1 * gradient
    second = beta2 * second + rest2 * gradient * gradient
    update = (first / correction1) / (tl.sqrt(second / correction2) + eps)
    tl.store(weights_ptr + offsets, weights * keep - lr * update, mask=mask)
    tl.store(first_ptr + offsets, first, mask=mask)
    tl.store(second_ptr + offsets, second, mask=mask)


def adamw(weights, gradient, first, second, lr, beta1, beta2, eps, decay, step):
    count = weights.numel()
    adamw_kernel[(triton.cdiv(count, CONFIG["BLOCK"]),)](
        weights, gradient, first, second, count, lr, 1 - lr * decay, beta1, beta2, 1 - beta1, 1 - beta2,
        1 - beta1**step, 1 - beta2**step, eps, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"],
    )  # fmt: skip
