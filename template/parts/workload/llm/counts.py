"""A model without a network, to compare with: which byte follows which two, counted in the training text."""

from __future__ import annotations

import numpy as np


def order_2(train: np.ndarray, text: np.ndarray, symbols: int = 257) -> float:
    """Bits per byte of `text` by counts of `train`, two symbols of context, as Witten & Bell (1991) mix them.

    A context seen n times with d different followers gives a weight of n ÷ (n + d) to what it counted and
    the rest to the context one shorter. `end` (256) is predicted too and counts as no byte.
    """
    share = np.full(len(text) - 2, 1 / symbols)
    for order in range(3):
        seen, asked = train[order:].copy(), text[2:].copy()
        for back in range(1, order + 1):
            seen += train[order - back : len(train) - back] * symbols**back
            asked += text[2 - back : len(text) - back] * symbols**back
        counts = np.bincount(seen, minlength=symbols ** (order + 1))
        pairs = counts.reshape(-1, symbols)
        context, followers = pairs.sum(1), (pairs > 0).sum(1)
        total = (context + followers)[asked // symbols]
        mixed = (counts[asked] + followers[asked // symbols] * share) / np.maximum(total, 1)
        share = np.where(total > 0, mixed, share)
    return float(-np.log2(share).sum() / max((text[2:] < 256).sum(), 1))
