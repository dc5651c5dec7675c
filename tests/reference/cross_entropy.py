"""Eq. 3 term by term.

For moderate logits only: the logarithm of a rounded sigmoid is what the package avoids.
"""

import math


def sigmoid(u):
    return 1.0 / (1.0 + math.exp(-u))


def weighted_cross_entropy(expert_logits, sample_logits, sample_weights):
    expert = sum(-math.log(sigmoid(u)) for u in expert_logits) / len(expert_logits)
    sample = sum(
        -w * math.log(1.0 - sigmoid(u)) for u, w in zip(sample_logits, sample_weights, strict=True)
    )
    return expert + sample / len(sample_logits)
