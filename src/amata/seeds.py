"""Randomness without hidden state: every draw is a function of (seed, epoch, batch, purpose)."""

import hashlib

import torch


def derive(*keys: int | str) -> int:
    """A 63-bit seed that depends on every key and on their order."""
    digest = hashlib.sha256(repr(keys).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*keys: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator on `device`, seeded by the keys alone."""
    return torch.Generator(device=device).manual_seed(derive(*keys))
