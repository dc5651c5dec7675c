"""What a reward R(c, x) likes best among a few proposals: a policy that needs no fit."""

from typing import Any, NamedTuple

import tensorflow as tf

from virl_tf.contexts import Places, checked, drawn
from virl_tf.density import Density
from virl_tf.numerics import sampling_seed
from virl_tf.reward import Reward, evaluate


class BestOf(NamedTuple):
    """x = argmax_i R(c, x_i), with x_i ~ p(x | c), i = 1 ... n.

    The larger n, the fewer modes are left where several are open.

    Attributes:
        reward: of rows [c, x].
        proposal: p, a density that samples in contexts.
        candidates: n.
    """

    reward: Reward
    proposal: Density
    candidates: int = 4

    def sample(self, c: Any, seed: Any = None) -> tf.Tensor:
        """The best for each context: c [N, C] -> [N, D]. `seed` as of `Mixture.sample`."""
        c = checked("c", c, self.reward.num_contexts)
        rows = drawn(self.proposal, Places(c, self.candidates), sampling_seed(seed))
        values = tf.reshape(evaluate(self.reward, rows), [self.candidates, -1])
        x = tf.reshape(rows[:, c.shape[1] :], [self.candidates, len(c), -1])
        return tf.gather(tf.transpose(x, [1, 0, 2]), tf.argmax(values, axis=0), batch_dims=1)
