"""The ways in which functions give a kernel its tile size and its warps: body, declared tile size, declared warps."""

HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
KERNEL = """
@triton.jit
def add_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)
"""
LOOPED = """
@triton.jit
def sum_kernel(x, y, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=0.0)
    tl.store(y + tl.program_id(0), tl.sum(total, 0))
"""


LAUNCH = "    add_kernel[(triton.cdiv(n, BLOCK),)](x, y, n, BLOCK=BLOCK, num_warps=num_warps)\n    return y\n"
WAYS = {
    "locals": ("def f(x, y, n):\n    BLOCK, num_warps = 512, 8\n" + LAUNCH, 512, 8),
    "a rule": ("def f(x, y, n):\n    BLOCK = 512 if n > 9 else 64\n    num_warps = 8 if BLOCK > 64 else 4\n" + LAUNCH, 0, 0),
    "defaults of the function": ("def f(x, y, n, BLOCK=512, num_warps=8):\n" + LAUNCH, 0, 0),
    "several steps": (
        "def settings(n):\n    return 512, 8\ndef f(x, y, n):\n    BLOCK, num_warps = settings(n)\n" + LAUNCH,
        0,
        0,
    ),
    "module constants": ("BLOCK = 2 * 256\nnum_warps = 8\ndef f(x, y, n):\n" + LAUNCH, 512, 8),
    "literals": ("def f(x, y, n):\n    add_kernel[((n + 511) // 512,)](x, y, n, 512, num_warps=8)\n", 512, 8),
    "META": ("def f(x, y, n):\n    add_kernel[lambda m: (triton.cdiv(n, m['BLOCK']),)](x, y, n, BLOCK=512)\n", 512, 4),
    "a dict": (
        "def f(x, y, n):\n    meta = {'BLOCK': 512, 'num_warps': 8}\n"
        "    add_kernel[(triton.cdiv(n, meta['BLOCK']),)](x, y, n, **meta)\n",
        512,
        8,
    ),
    "a table": (
        "T = {1: {'b': 512, 'w': 8}}\ndef f(x, y, n, k):\n"
        "    add_kernel[(triton.cdiv(n, T[k]['b']),)](x, y, n, BLOCK=T[k]['b'], num_warps=T[k]['w'])\n",
        0,
        0,
    ),
    "a variable that holds the launch": (
        "def f(x, y, n):\n    BLOCK = 512\n    run = add_kernel[(triton.cdiv(n, BLOCK),)]\n    run(x, y, n, BLOCK)\n",
        512,
        4,
    ),
    "a method": (
        "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, y, n):\n        BLOCK = 512\n"
        "        add_kernel[(triton.cdiv(n, BLOCK),)](x, y, n, BLOCK=BLOCK, num_warps=8)\n"
        "def f(x, y, n):\n    F.forward(None, x, y, n)\n",
        512,
        8,
    ),
    "arguments by stars": (
        "def f(x, y, n):\n    add_kernel[lambda m: (triton.cdiv(n, m['BLOCK']),)](*(x, y), n=n, BLOCK=512)\n",
        512,
        4,
    ),
}
