"""Tells a problem's kind of kernel from its name, and what a search can be expected to gain on such kernels.

The expectation only orders problems, so that a budget that ends early went where it pays. It is from measurements on an H200: what
torch.compile gains over eager on KernelBench's first level is most for norms, losses and scans, and next to nothing for plain pointwise
kernels and products, while its depthwise and transposed convolutions are slower than eager, so that there is room; of TritonBench-G's
own kernels most sit at the bandwidth of memory or at the cost of a launch, and gains came from loops over little work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

FAMILIES: Mapping[str, tuple[str, float]] = {
    "convolution": (r"conv(?!ert)", 0.5),
    "pooling": (r"pool", 0.7),
    "attention": (
        r"attn|attention|flash|retention|transformer|gpt|vit\b|swin|mamba|rwkv|hgrn|delta|gla\b|kv_cache|token_softmax",
        0.6,
    ),
    "loss": (r"loss|entropy|kldiv|kl_div|hinge|huber|triplet|ce_|cosine_embedding", 1.0),
    "norm": (r"norm(?!al_)|rms(?!e)", 0.9),
    "scan": (r"cumsum|cumprod|scan|ssm|recurren", 0.9),
    "quantisation": (r"quant|int4|int8|fp4|fp8|f8_|mxfp", 0.7),
    "gemm": (r"matmul|mm\b|mm_|gemm|matrix|linear|bmm|vecmat|dot|lora|[bs]gmv|mlp|tensordot", 0.4),
    "reduction": (r"softmax|argm|reduc|\bsum|mean|max|min\b|logsumexp|std|sort|topk|masked_select", 0.8),
    "indexing": (r"index|embedding|gather|scatter|copy|transpose|permute|flip|rope|rotary|reverse|cache|swizzle", 0.5),
    "random": (r"dropout|rand|uniform|multinomial|sampling", 0.1),
}
"""Family → pattern of names, and the expected gain; the first that matches counts."""
POINTWISE = ("pointwise", 0.3)
SPECIAL = 0.15
"""Gains more, where a name says that several operators are fused."""
_FUSED = re.compile(r"fused|_and_|(?:[A-Z][a-z0-9]+_){2,}[A-Z]")


def family_of(name: str) -> tuple[str, float]:
    """Family and expected gain of a problem, by its name."""
    fused = SPECIAL if _FUSED.search(name) else 0.0
    for family, (pattern, gain) in FAMILIES.items():
        if re.search(pattern, name.lower()):
            return family, round(gain + fused, 3)
    return POINTWISE[0], round(POINTWISE[1] + fused, 3)
