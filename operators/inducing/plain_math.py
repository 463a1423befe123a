"""Functions of the device library that Triton's language lacks, as plain functions that every back end and the interpreter runs."""

from __future__ import annotations

from collections.abc import Mapping

PLAIN: Mapping[str, str] = {
    "isnan": """@triton.jit
def isnan(x):
    return x != x""",
    "isinf": """@triton.jit
def isinf(x):
    return tl.abs(x) == float("inf")""",
    "trunc": """@triton.jit
def trunc(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))""",
    "nearbyint": """@triton.jit
def nearbyint(x):
    # Halves go to the even neighbour.
    below = tl.floor(x)
    odd = below - 2 * tl.floor(below / 2)
    rest = x - below
    return tl.where((rest > 0.5) | ((rest == 0.5) & (odd == 1)), below + 1, below)""",
    "rint": """@triton.jit
def rint(x):
    return nearbyint(x)""",
    "fmod": """@triton.jit
def fmod(x, y):
    return x % y""",
    "signbit": """@triton.jit
def signbit(x):
    # Only of float32.
    return x.to(tl.int32, bitcast=True) < 0""",
    "tanh": """@triton.jit
def tanh(x):
    # Near 0 an odd polynomial, as 1 - 2 / (exp(2x) + 1) loses the small digits there.
    size = tl.abs(x)
    square = x * x
    near = -5.70498872745e-3 * square + 2.06390887954e-2
    near = near * square - 5.37397155531e-2
    near = near * square + 1.33314422036e-1
    near = near * square - 3.33332819422e-1
    near = x + x * square * near
    far = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    return tl.where(size < 0.625, near, tl.where(x < 0, -far, far))""",
    "expm1": """@triton.jit
def expm1(x):
    # (u - 1) * x / log(u) takes back what rounding u = exp(x) lost.
    u = tl.exp(x)
    exact = (u - 1.0) * (x / tl.log(u))
    return tl.where((u == 1.0) | (x != x), x, tl.where((u == 0.0) | (u == float("inf")), u - 1.0, exact))""",
    "log1p": """@triton.jit
def log1p(x):
    # log(u) * x / (u - 1) takes back what rounding u = 1 + x lost.
    u = 1.0 + x
    exact = tl.log(u) * (x / (u - 1.0))
    return tl.where(u == 1.0, x, tl.where((u == float("inf")) | (u == 0.0), tl.log(u), exact))""",
    "pow": """@triton.jit
def power(x, y):
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    whole = tl.floor(y) == y
    odd = whole & (y - 2 * tl.floor(y * 0.5) == 1)
    signed = tl.where(x < 0, tl.where(whole, tl.where(odd, -size, size), float("nan")), size)
    return tl.where((y == 0) | (x == 1), 1.0, signed)""",
    "sinh": """@triton.jit
def sinh(x):
    grown = expm1(tl.abs(x))
    half = tl.where(grown > 1e18, tl.exp(tl.abs(x) * 0.5) * 0.5 * tl.exp(tl.abs(x) * 0.5), 0.5 * (grown + grown / (grown + 1.0)))
    return tl.where(x < 0, -half, half)""",
    "cosh": """@triton.jit
def cosh(x):
    half = 0.5 * tl.exp(0.5 * tl.abs(x))
    return half * tl.exp(0.5 * tl.abs(x)) + 0.5 * tl.exp(-tl.abs(x))""",
    "tan": """@triton.jit
def tan(x):
    return tl.sin(x) / tl.cos(x)""",
    "log10": """@triton.jit
def log10(x):
    return tl.log2(x) * 0.30102999566398120""",
    "sigmoid": """@triton.jit
def sigmoid(x):
    return tl.sigmoid(x)""",
    "max2": """@triton.jit
def max_along(x, axis):
    # NaN where there is one, as torch has it.
    found = tl.max(x, axis)
    if x.dtype.is_floating():
        found = tl.where(tl.max((x != x).to(tl.int32), axis) != 0, float("nan"), found)
    return found""",
    "min2": """@triton.jit
def min_along(x, axis):
    # NaN where there is one, as torch has it.
    found = tl.min(x, axis)
    if x.dtype.is_floating():
        found = tl.where(tl.max((x != x).to(tl.int32), axis) != 0, float("nan"), found)
    return found""",
    "select_one": """@triton.jit
def pick(x, mask, dim, keep_dims=False):
    # The one element along dim where the mask holds.
    return tl.sum(tl.where(mask, x, 0), dim, keep_dims=keep_dims)""",
    "any": """@triton.jit
def any_along(x, axis):
    return tl.max(x.to(tl.int32), axis) != 0""",
}
"""Name → source. Errors are a few units in the last place of float32."""
