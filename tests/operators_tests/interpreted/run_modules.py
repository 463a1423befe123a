"""Runs kernel modules under Triton's interpreter and compares them with float64 references (a child process of the tests).

Standard input: JSON list of jobs {"kernel", "entry", "original", "rewritten", "config"}; standard output: per job, per case
{"expected_error", "error", "same_bits"} or {"failure"}.
"""

import functools
import importlib.util
import itertools
import json
import math
import os
import sys
import tempfile
import traceback
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import torch

GENERATOR = torch.Generator().manual_seed(7)
COUNTER = itertools.count()
FLAT = ((3, 37), (2, 64))


def normal(*shape, dtype=torch.float32, scale=1.0):
    return (torch.randn(*shape, generator=GENERATOR) * scale).to(dtype)


def rotated(x, cos, sin):
    first, second = x.chunk(2, dim=1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=1)


def rms(x, residual, w, eps):
    total = x + residual
    return total / (total.square().mean(1, keepdim=True) + eps).sqrt() * w, total


def quantized(x):
    scales = x.abs().amax(1).clamp(min=1e-10) / 127
    return torch.floor(x / scales[:, None] + 0.5).clamp(-127, 127), scales


def norm(x):
    length = x.norm(dim=1)
    return x / length[:, None], length


def attended(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def rows(dtype=torch.float32):
    return [[normal(r, c, dtype=dtype, scale=3.0)] for r, c in FLAT]


def matrices(count, dtype=torch.float32):
    return [[normal(r, c, dtype=dtype) for _ in range(count)] for r, c in FLAT]


INFINITE = torch.tensor([[-math.inf] * 40 + [1.0, 2.0], [3.0] + [-math.inf] * 41])
HALF = torch.float16
KERNELS = {
    "softmax": (lambda x: x.softmax(1), [*rows(HALF), [INFINITE]]),
    "log_softmax": (lambda x: x.log_softmax(1), rows()),
    "rms_norm": (rms, [[normal(r, c), normal(r, c), normal(c), 1e-5] for r, c in FLAT]),
    "swiglu": (
        lambda g, u: torch.nn.functional.silu(g) * u,
        [[normal(r, c, dtype=HALF), normal(r, c, dtype=HALF)] for r, c in FLAT],
    ),
    "quantize_rows": (quantized, rows()),
    "gemm_bias_gelu": (
        lambda a, b, bias: torch.nn.functional.gelu(a @ b + bias, approximate="tanh"),
        [[normal(m, k, scale=0.3), normal(k, n), normal(n)] for m, n, k in ((17, 33, 21), (32, 32, 64))],
    ),
    "attention": (attended, [[normal(1, 2, n, 16, dtype=HALF) for _ in range(3)] for n in (37, 64)]),
    "layer_norm": (
        lambda x, w, b: torch.nn.functional.layer_norm(x, x.shape[1:], w, b),
        [[normal(r, c), normal(c), normal(c)] for r, c in FLAT],
    ),
    "l2_normalise": (norm, rows()),
    "row_max": (lambda x: x.amax(1), rows()),
    "add_relu": (lambda x, y: (x + y).relu(), [*matrices(2), [normal(2, 1024), normal(2, 1024)]]),
    "rope": (rotated, [[normal(r, 2 * c), normal(r, c), normal(r, c)] for r, c in FLAT]),
    "scale_columns": (lambda x, s: x * s, [[normal(r, c), normal(c)] for r, c in FLAT]),
    "sum_products": (lambda x, y: (x * y).sum(1), matrices(2)),
    "prefix_sum": (lambda x: x.cumsum(1), rows()),
    "looped_norm": (lambda x: x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt(), rows()),
    "two_pass_norm": (lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]), rows()),
    "row_moments": (lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]), rows()),
    "atomic_sums": (lambda x: (x.sum().reshape(1), x.sum(0)), rows()),
    "weight_gradient": (lambda x, dy: (x * dy).sum(0), matrices(2)),
    "two_launches": (lambda x, other: (2.0 * x + other, (2.0 * x + other).square()), matrices(2)),
    "shared_weights": (lambda x, w: x * w - w, [[normal(r, c), normal(c)] for r, c in FLAT]),
    "module_weights": (lambda x: (x * torch.arange(x.shape[1]),) * 2, rows()),
}


def load(source, folder):
    path = Path(folder) / f"module_{next(COUNTER)}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outputs(module, entry, arguments):
    result = getattr(module, entry)(*arguments)
    return result if isinstance(result, tuple) else (result,)


def error(got, want):
    difference = (got.double() - want.double()).abs() / (1.0 + want.double().abs())
    return 0.0 if torch.equal(got.double(), want.double()) else float(difference[want.isfinite()].max())


@functools.cache
def original_results(kernel, entry, source, folder):
    reference, cases = KERNELS[kernel]
    module = load(source, folder)
    results = []
    for arguments in cases:
        want = reference(*(a.double() if isinstance(a, torch.Tensor) else a for a in arguments))
        results.append((want if isinstance(want, tuple) else (want,), outputs(module, entry, arguments)))
    return results


def judge(job, folder):
    verdicts = []
    cases = KERNELS[job["kernel"]][1]
    originals = original_results(job["kernel"], job["entry"], job["original"], folder)
    rewritten = load(job["rewritten"], folder)
    config = getattr(rewritten, "CONFIG", {})
    config.update({name: value for name, value in job["config"].items() if name in config})
    for arguments, (want, first) in zip(cases, originals, strict=True):
        second = outputs(rewritten, job["entry"], arguments)
        verdicts.append(
            {
                "expected_error": max(map(error, first, want)),
                "error": max(map(error, second, want)),
                "same_bits": all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(first, second, strict=True)),
            }
        )
    return verdicts


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        answers = []
        for job in json.load(sys.stdin):
            try:
                answers.append(judge(job, folder))
            except Exception:  # noqa: BLE001 - the test that started this process reports it
                answers.append([{"failure": traceback.format_exc()[-1500:]}])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
