"""An nn.Module that packs its weight once (transposed, cast) on the first call and uses the packed copy ever after."""

import torch
import triton
import triton.language as tl


@triton.jit
def pack(w_ptr, packed_ptr, out_features, in_features, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = lane < in_features
    w = tl.load(w_ptr + row * in_features + lane, mask=mask)
    tl.store(packed_ptr + lane * out_features + row, w.to(tl.float16), mask=mask)


@triton.jit
def linear(x_ptr, w_ptr, b_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(x_ptr + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        w = tl.load(w_ptr + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        total += tl.dot(x, w)
    total += tl.load(b_ptr + n, mask=n < N, other=0.0)[None, :]
    tl.store(y_ptr + m[:, None] * N + n[None, :], total.to(tl.float16), mask=(m[:, None] < M) & (n[None, :] < N))


class PackedLinear(torch.nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(out_features, in_features))
        self.bias = torch.nn.Parameter(torch.empty(out_features))
        self.packed = None

    def forward(self, x):
        out_features, in_features = self.weight.shape
        if self.packed is None:
            self.packed = torch.empty(in_features, out_features, dtype=torch.float16, device=x.device)
            grid = (out_features, triton.cdiv(in_features, 128))
            pack[grid](self.weight, self.packed, out_features, in_features, BLOCK=128)
        y = torch.empty(x.shape[0], out_features, dtype=torch.float16, device=x.device)
        grid = (triton.cdiv(x.shape[0], 32), triton.cdiv(out_features, 64))
        linear[grid](x, self.packed, self.bias, y, x.shape[0], out_features, in_features, BM=32, BN=64, BK=32)
        return y


entry = PackedLinear
