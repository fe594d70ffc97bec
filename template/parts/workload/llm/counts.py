"""A model without a network, to compare with: which byte follows which two in the training text."""

from __future__ import annotations

import numpy as np


def order_2(train: np.ndarray, text: np.ndarray, symbols: int = 257) -> float:
    """Bits per byte of `text` by counts of `train`, two symbols of context.

    The orders are mixed as Witten & Bell (1991) do: a context seen n times with d different
    followers gives a weight of n ÷ (n + d) to what it counted and the rest to the context one
    shorter. `end` (256) is predicted too and counts as no byte.
    """
    share = np.full(len(text) - 2, 1 / symbols)
    for order in range(3):
        # One number stands for a context and what follows it.
        seen = train[order:].copy()
        asked = text[2:].copy()
        for back in range(1, order + 1):
            seen += train[order - back : len(train) - back] * symbols**back
            asked += text[2 - back : len(text) - back] * symbols**back
        counts = np.bincount(seen, minlength=symbols ** (order + 1))
        by_context = counts.reshape(-1, symbols)
        num_seen = by_context.sum(1)
        num_followers = (by_context > 0).sum(1)

        context = asked // symbols
        total = (num_seen + num_followers)[context]
        mixed = (counts[asked] + num_followers[context] * share) / np.maximum(total, 1)
        share = np.where(total > 0, mixed, share)
    num_bytes = (text[2:] < 256).sum()
    return float(-np.log2(share).sum() / max(num_bytes, 1))
