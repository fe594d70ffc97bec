"""A baseline without a network: counts of which byte follows two others in the training text."""

from __future__ import annotations

import numpy as np


def order_2(train: np.ndarray, text: np.ndarray, symbols: int = 257) -> float:
    """Return bits per byte of `text`, predicted from counts in `train` with two symbols of context.

    The orders are mixed as in Witten & Bell (1991). A context seen n times with d different
    followers has a weight of n ÷ (n + d), and the next shorter context has the remaining weight.
    `end` (256) is also predicted, but does not count as a byte.
    """
    share = np.full(len(text) - 2, 1 / symbols)
    for order in range(3):
        # One number encodes a context and the symbol that follows it.
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
