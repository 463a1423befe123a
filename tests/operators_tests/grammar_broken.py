"""Kernels broken by hand: one change each of a module that is right, and where the grammar must have noticed at the latest."""

from __future__ import annotations

RIGHT = """import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "num_warps": 4}
SPACE = {"BLOCK": [256, 512, 1024], "num_warps": [2, 4]}


@triton.jit
def scale_kernel(x_ptr, y_ptr, count, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for step in range(0, 4):
        total += x * factor
    if factor > 1.0:
        total = total - 1.0
    tl.store(y_ptr + offsets, total, mask=mask)


def scale(x, factor):
    y = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), CONFIG["BLOCK"]),)
    scale_kernel[grid](x, y, x.numel(), factor, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])
    return y
"""

_IN_KERNEL = "    mask = offsets < count\n"
_LOOP = "        total += x * factor\n"


def _after(line: str, added: str) -> tuple[str, str]:
    return line, line + added


BROKEN: dict[str, tuple[str, str]] = {
    # What Python itself refuses.
    "no colon after def": ("BLOCK: tl.constexpr):", "BLOCK: tl.constexpr)"),
    "no colon after for": ("range(0, 4):", "range(0, 4)"),
    "no colon after if": ("factor > 1.0:", "factor > 1.0"),
    "bracket never closed": ("tl.arange(0, BLOCK)\n", "tl.arange(0, BLOCK\n"),
    "bracket closed twice": ("tl.arange(0, BLOCK)\n", "tl.arange(0, BLOCK))\n"),
    "wrong bracket": ("tl.zeros([BLOCK]", "tl.zeros([BLOCK)"),
    "no closing quote": ('CONFIG["BLOCK"]),)', 'CONFIG["BLOCK]),)'),
    "body not indented": (_IN_KERNEL, "mask = offsets < count\n"),
    "one blank too many": (_IN_KERNEL, "     mask = offsets < count\n"),
    "one level too deep": (_IN_KERNEL, "        mask = offsets < count\n"),
    "a tab": (_IN_KERNEL, "\tmask = offsets < count\n"),
    "empty loop": (_LOOP, ""),
    "two operators": ("x * factor", "x * / factor"),
    "operator without operand": ("x * factor", "x *"),
    "two names": ("x * factor", "x factor"),
    "assignment to a sum": ("mask = offsets < count", "mask + 1 = offsets < count"),
    "assignment to a call": ("mask = offsets < count", "f(mask) = offsets < count"),
    "assignment to a number": ("mask = offsets < count", "1 = offsets < count"),
    "assignment to a constant": ("mask = offsets < count", "None = offsets < count"),
    "augmented tuple": ("total += x", "total, x += x"),
    "keyword as a name": ("mask = offsets < count", "lambda = offsets < count"),
    "keyword as an argument": ("count, factor, BLOCK", "count, in, BLOCK"),
    "positional after keyword": ("mask=mask, other=0.0", "mask=mask, 0.0"),
    "default before none": ("y_ptr, count, factor, BLOCK: tl", "y_ptr=None, count, factor, BLOCK: tl"),
    "two commas": ("x_ptr, y_ptr, count", "x_ptr,, y_ptr, count"),
    "number with letters": ('1024, "num_warps"', '10z4, "num_warps"'),
    "leading zero": ("range(0, 4)", "range(0, 04)"),
    "dollar": ("x * factor", "x $ factor"),
    "question mark": ("x * factor", "x ? factor"),
    "exclamation mark": ("offsets < count", "!offsets"),
    "C condition": ("if factor > 1.0:", "if (factor > 1.0) && mask:"),
    "C increment": (_LOOP, "        total++\n"),
    "C block": ("if factor > 1.0:", "if (factor > 1.0) {"),
    "C comment": (_LOOP, "        // total\n" + _LOOP),
    "arrow": ("x_ptr + offsets, mask=mask, other", "x_ptr->offsets, mask=mask, other"),
    "else without if": ("    total = tl.zeros", "    else:\n        pass\n    total = tl.zeros"),
    "elif after else": ("    tl.store", "    else:\n        pass\n    elif mask:\n        pass\n    tl.store"),
    "import without name": ("import torch\n", "import\n"),
    "import as a number": ("import triton.language as tl", "import triton.language as 1"),
    "decorator on an assignment": ("@triton.jit\ndef scale_kernel", "@triton.jit\nx = 1\n\n\ndef scale_kernel"),
    "ellipsis in prose": (_LOOP, "        ... rest as before\n"),
    "prose": ("def scale(x, factor):", "Here is the wrapper:\n\ndef scale(x, factor):"),
    "fence inside": ("def scale(x, factor):", "```\n\ndef scale(x, factor):"),
    "search mark inside": ("def scale(x, factor):", "<<<<<<< SEARCH\ndef scale(x, factor):"),
    "cut off": ('num_warps=CONFIG["num_warps"])\n    return y\n', "num_wa"),
    "lambda without colon": ('grid = (triton.cdiv(x.numel(), CONFIG["BLOCK"]),)', "grid = lambda meta (1,)"),
    "comprehension without in": ("grid = (", "grid = [i for i range(3)]\n    grid = ("),
    "unbalanced f-string": ("    return y\n", '    print(f"{y")\n    return y\n'),
    # What Python takes and the compiler of kernels does not.
    "break": _after(_LOOP, "        break\n"),
    "continue": _after(_LOOP, "        continue\n"),
    "try": _after(_IN_KERNEL, "    try:\n        pass\n    except ValueError:\n        pass\n"),
    "lambda in a kernel": ("x = tl.load(", "f = lambda a: a\n    x = tl.load("),
    "dict in a kernel": _after(_IN_KERNEL, "    d = {1: 2}\n"),
    "set in a kernel": _after(_IN_KERNEL, "    d = {1, 2}\n"),
    "function in a kernel": _after(_IN_KERNEL, "    def inner(a):\n        return a\n"),
    "class in a kernel": _after(_IN_KERNEL, "    class Inner:\n        pass\n"),
    "import in a kernel": _after(_IN_KERNEL, "    import math\n"),
    "from import in a kernel": _after(_IN_KERNEL, "    from math import pi\n"),
    "global in a kernel": _after(_IN_KERNEL, "    global total\n"),
    "nonlocal in a kernel": _after(_IN_KERNEL, "    nonlocal total\n"),
    "del in a kernel": _after(_IN_KERNEL, "    del mask\n"),
    "yield in a kernel": _after(_IN_KERNEL, "    yield mask\n"),
    "await in a kernel": ("total += x", "total += await x"),
    "while with else": _after(_IN_KERNEL, "    while count > 0:\n        pass\n    else:\n        pass\n"),
    "for with else": (_LOOP, _LOOP + "    else:\n        pass\n"),
    "async for": ("    for step", "    async for step"),
    "decorated inner function": _after(_IN_KERNEL, "    @staticmethod\n    def inner(a):\n        return a\n"),
    "match": _after(_IN_KERNEL, "    match count:\n        case 1:\n            pass\n"),
    "starred generator": ("tl.zeros([BLOCK]", "tl.zeros({BLOCK: 1}"),
    # What Triton's language does not have.
    "tl.tanh": ("x * factor", "tl.tanh(x)"),
    "tl.loads": ("tl.load(", "tl.loads("),
    "tl.stroe": ("tl.store(", "tl.stroe("),
    "tl.mean": ("x * factor", "tl.mean(x)"),
    "tl.Tensor": ("x * factor", "tl.Tensor(x)"),
    "tl.cuda": ("x * factor", "tl.cuda.thread(x)"),
}
"""What is broken → (old text, new text); the old stands in `RIGHT` once or more, and its first is replaced."""


def broken(name: str) -> tuple[str, int]:
    """A broken module, and the byte after which its grammar must not have been satisfied."""
    old, new = BROKEN[name]
    assert old in RIGHT, name
    return RIGHT.replace(old, new, 1), len(RIGHT[: RIGHT.index(old)].encode()) + len(new.encode())
