"""The polar factor of a matrix by Newton-Schulz iterations: matrix products only, so that a CUDA
graph can record it and the host never waits. Routines of torch.linalg wait."""

from collections.abc import Sequence

import torch
from torch import Tensor

Quintic = tuple[float, float, float]
"""Coefficients of p(s) = a s + b s^3 + c s^5."""

STEEP: Quintic = (3.4445, -4.7750, 2.0315)
"""Steep at 0 (Jordan et al. 2024): five applications map singular values above 0.01 into 0.7 to
1.2."""
CLOSE: Quintic = (15 / 8, -10 / 8, 3 / 8)
"""Newton-Schulz of third order: converges to 1 from near 1."""
ITERATIONS = (STEEP,) * 9 + (CLOSE,) * 4
"""Singular values above 1e-5 of the Frobenius norm become 1 to rounding, in float64."""


def polar(x: Tensor) -> Tensor:
    """U V^T of the matrix U S V^T, without gradient. Singular values far below 1e-5 of the
    Frobenius norm count less, and go to 0 with s; the factor of a zero matrix is zero.

    It is computed in float64: a Gram matrix squares the singular values.
    """
    with torch.no_grad():
        d = x.detach().double()
        tall = d.shape[0] > d.shape[1]
        gram = d.mT @ d if tall else d @ d.mT
        scale = d.square().sum().clamp_min(torch.finfo(d.dtype).tiny).rsqrt()
        q = gram_factors((gram * scale * scale)[None], ITERATIONS)[0] * scale
        return (d @ q if tall else q @ d).to(x.dtype)


def gram_factors(gram: Tensor, quintics: Sequence[Quintic]) -> Tensor:
    """Q of each Gram matrix G of X in a stack: Q X is the quintics, applied to X in turn.

    A polynomial of a matrix X is Q X with a polynomial Q of the Gram matrix X X^T, which is as wide
    as the smaller side of X.
    """
    total = gram
    for index, (a, b, c) in enumerate(quintics):
        # With S = b G + c G^2 the quintic is (a + S) X, and its Gram matrix (a + S) G (a + S).
        s = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        if index == 0:
            # no diagonal(): compiling it prints a warning of torch 2.11
            total = s + a * torch.eye(s.shape[-1], dtype=s.dtype, device=s.device)
        else:
            total = torch.baddbmm(total, s, total, beta=a)
        if index < len(quintics) - 1:
            half = torch.baddbmm(gram, s, gram, beta=a)
            gram = torch.baddbmm(half, half, s, beta=a)
    return total
