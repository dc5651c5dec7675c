"""Proposals without those that a reward R(c, x) refuses: a policy that needs no fit."""

from numbers import Real
from typing import Any, NamedTuple

import tensorflow as tf

from virl_tf.contexts import Places, checked, drawn
from virl_tf.density import Density
from virl_tf.mixture import Mixture
from virl_tf.numerics import sampling_seed
from virl_tf.reward import Reward, evaluate
from virl_tf.validation import InputError, check_integer, told


class AmongBest(NamedTuple):
    """The first x_i ~ p(x | c) of n with R(c, x_i) >= max_j R(c, x_j) - tolerance.

    With a tolerance of 0 it is the best one, for which all modes but one are given up; an infinite
    one takes what is proposed.

    Attributes:
        reward: of rows [c, x].
        proposal: p, a density that samples in contexts; of a `Fusion`, whose draws are the
            policy's first, take one half.
        candidates: n.
        tolerance: in nats.
    """

    reward: Reward
    proposal: Density
    candidates: int = 8
    tolerance: float = 6.0

    def sample(self, c: Any, seed: Any = None) -> tf.Tensor:
        """One for each context: c [N, C] -> [N, D]. `seed` as of `Mixture.sample`.

        Raises InputError for contexts of another kind, and attributes that cannot be used.
        """
        if not self.reward.num_contexts:
            raise InputError("AmongBest needs a reward with contexts, fitted with contexts=.")
        check_integer("candidates", self.candidates, 1)
        if not (isinstance(self.tolerance, Real) and self.tolerance >= 0.0):
            raise InputError(f"tolerance must be at least 0 nats, got {told(self.tolerance)}.")
        if isinstance(self.proposal, Mixture):
            raise InputError("proposal must sample in contexts; a Mixture has none.")
        c = checked("c", c, self.reward.num_contexts)
        if c.shape.rank != 2:
            wanted = f"[N, {self.reward.num_contexts}], a context for each draw"
            raise InputError(f"c must be {wanted}, got shape {c.shape}.")
        rows = drawn(self.proposal, Places(c, self.candidates), sampling_seed(seed))
        # As where the reward is called: angles of any turn.
        values = evaluate(self.reward, self.reward.domain.wrap(rows))
        values = tf.reshape(values, [self.candidates, -1])
        good = values >= tf.reduce_max(values, axis=0) - self.tolerance
        first = tf.argmax(tf.cast(good, tf.int32), axis=0)
        sizes = [self.candidates, tf.shape(c)[0], self.reward.dim]
        x = tf.reshape(rows[:, c.shape[1] :], sizes)
        return tf.gather(tf.transpose(x, [1, 0, 2]), first, batch_dims=1)
