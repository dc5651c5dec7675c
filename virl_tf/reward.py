"""The cumulative reward R(x) = log q*_0(x) + sum_i phi_i(x) (Eq. 2), as a value: arrays only."""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from virl_tf.conditional import ConditionalMixture, Policy
from virl_tf.contexts import checked_context, rows_of
from virl_tf.domain import EVERYWHERE, Domain
from virl_tf.features import Features, in_context
from virl_tf.mixture import Mixture
from virl_tf.network_stack import FrozenNetwork, NetworkStack
from virl_tf.numerics import (
    DENSITY,
    NETWORK,
    by_blocks,
    compiled,
    from_network,
    if_paths,
    real_tensor,
    specs_of,
)
from virl_tf.shapes import Array, Float64
from virl_tf.validation import InputError, check_integer

FARTHEST = 1e15  # standard deviations of the demonstrations: 1e38 is no float32 after some layers


class Reward(NamedTuple):
    """R(x) = a log base(x) + sum_i phi_i(features(x)) + b log mixture(x).

    Call it: float or array [..., D] -> float64 [...]. It is an unnormalised log density, so TFP's
    samplers take it as it is. With contexts it is R(c, x), up to a function of c, and called as
    reward(x, c); `log_prob` and networks see rows [c, x] (`virl_tf.contexts`). tf.function takes it
    as `lambda x: reward(x)`: of a tuple, which this is, it cannot hold a weak reference.

    Attributes:
        base: the prior q*_0 (V-IRL), or the policy (EIM, whose networks are none).
        base_exponent: a; 0 leaves the base out (G-EIM, and where `mixture` is q*_0).
        networks: the stack of phi_i.
        features: what the networks see of a point, or row.
        mixture: an EM mixture of the demonstrations, which is q*_0 itself (b = 1), or with which a
            reward may be pooled at the end of a run; else without components.
        mixture_exponent: b; 0 leaves the mixture out, as in the paper.
        domain: outside of its bounds R(x) is -inf; angles are taken modulo their period.
    """

    base: Policy
    base_exponent: Float64[Array, ""]
    networks: NetworkStack
    features: Features
    mixture: Policy
    mixture_exponent: Float64[Array, ""]
    domain: Domain = EVERYWHERE

    def __repr__(self) -> str:
        """What it is made of, in a line."""
        count = tf.get_static_value(self.networks.count)
        kernels = self.networks.networks.hidden_kernels.shape
        networks = f"{count} network{'s' if count != 1 else ''} of {kernels[1] + 1} x {kernels[-1]}"
        exponent = tf.get_static_value(self.mixture_exponent)
        pooled = f", {exponent:.2f} x log of an EM mixture" if exponent else ""
        left_out = tf.get_static_value(self.base_exponent) == 0.0
        base = "" if left_out else f", base: a mixture of {self.base.num_components}"
        contexts = f"C = {self.num_contexts}, " if self.num_contexts else ""
        return f"<Reward {contexts}D = {self.dim}, {networks}{base}{pooled}>"

    @property
    def dim(self) -> int:
        """D."""
        return self.features.dim - self.num_contexts

    @property
    def num_contexts(self) -> int:
        """C, 0 for a reward that answers to no context."""
        return self.base.num_contexts

    def __call__(self, x: Any, c: Any = None) -> tf.Tensor:
        """R(x): [..., D] -> [...], float64, differentiable in x. To compile it:
        tf.function(lambda x: reward(x)).

        Args:
            x: [..., D]; columns of a data frame count in their order, whatever they are called.
            c: the contexts [..., C] of a reward that has any; broadcast to x.

        Raises:
            InputError: another last axis, what is not real, or a context where there is none.
        """
        if (c is not None) != (self.num_contexts > 0):
            needs, call = "no contexts", "(x)"
            if self.num_contexts:
                needs = f"contexts [..., {self.num_contexts}]"
                call = "(x, c); of rows [c, x] it is log_prob(rows)"
            raise InputError(f"this reward takes {needs}: {call}.")
        if c is None:
            x = _checked_points(x, self.dim)
        else:
            x = rows_of(x, c, self.num_contexts, self.dim)
        x = self.domain.wrap(x)
        flat = evaluate(self, tf.reshape(x, [-1, self.features.dim]))
        return tf.reshape(flat, tf.shape(x)[:-1])

    def log_prob(self, x: Float64[Array, "N D"]) -> Float64[Array, " N"]:
        """R(x): [N, D] -> [N], not compiled: for use inside other compiled functions.

        Of angles only the turn in `domain` counts; elsewhere it is -inf, so that a policy has each
        mode once.

        Raises:
            InputError: x is no matrix.
        """
        x = tf.cast(x, DENSITY)
        if x.shape.rank not in (2, None):
            raise InputError(
                f"log_prob takes rows [N, D], not {list(x.shape)}; reward(x) takes [..., D]."
            )
        values = self.log_base(x) + self.networks.sum_logits(self.features(x))
        return self._bounded(x, values)

    def _bounded(
        self, x: Float64[Array, "N D"], values: Float64[Array, " N"]
    ) -> Float64[Array, " N"]:
        """`values`, and -inf outside of the domain or so far away that squares and networks are no
        numbers any more; not where x is NaN.
        """
        z = (x - self.features.shift) / self.features.scale
        far = tf.reduce_any(tf.abs(z) > FARTHEST, axis=-1)
        lowest = tf.constant(-np.inf, DENSITY)
        return tf.where(far, lowest, self.domain.bounded(x, values))

    def log_base(self, x: Float64[Array, "N D"]) -> Float64[Array, " N"]:
        """All but the networks: [N, D] -> [N]; a density whose exponent is 0 adds 0."""
        of_base = _scaled(self.base_exponent, self.base, x)
        return of_base + _scaled(self.mixture_exponent, self.mixture, x)

    # --- rewards made from this one ---------------------------------------------------------------

    def add(self, phi: FrozenNetwork) -> "Reward":
        """Log q*_{t+1} = log q*_t + `phi` (Algorithm 1, line 3)."""
        return self._replace(networks=self.networks.append(phi))

    def condition(self, c: Any) -> "Reward":
        """R(c, .) of one context c [C], a reward without contexts. Far outside of the demonstrated
        contexts it is a guess, of which a fit's `Result.doubts(c)` tells.

        Raises:
            InputError: c is something else.
        """
        if self.num_contexts == 0:
            raise InputError("this reward takes no contexts.")
        c = checked_context(c, self.num_contexts)
        densities: Any = self.base, self.mixture
        base, mixture = (density.condition(c) for density in densities)
        features, networks = in_context(self.features, self.networks.networks, c)
        return self._replace(
            base=base,
            networks=self.networks._replace(networks=networks),
            features=features,
            mixture=mixture,
            domain=self.domain.in_context(self.num_contexts),
        )

    def of_policy(self, policy: Policy) -> "Reward":
        """The log density of a `policy` in the place of this reward: no networks."""
        one = tf.constant(1.0, DENSITY)
        return self.without_base()._replace(base=policy, base_exponent=one)

    def without_base(self) -> "Reward":
        """A sum of networks alone, none yet."""
        zero, none = tf.constant(0.0, DENSITY), self.networks.emptied()
        return self._replace(base_exponent=zero, mixture_exponent=zero, networks=none)

    def pooled(self, exponent: float) -> "Reward":
        """The geometric mean (1 - exponent) R(x) + exponent log mixture(x)."""
        rest = 1.0 - exponent
        return self._replace(
            base_exponent=rest * self.base_exponent,
            networks=self.networks._replace(networks=self.networks.networks.times(rest)),
            mixture_exponent=rest * self.mixture_exponent + exponent,
        )

    def truncate(self, count: int) -> "Reward":
        """The reward with its first `count` networks alone: log q*_count; of a pooled reward its
        pool.
        """
        count = check_integer("count", count, 0, int(self.networks.count))
        return self._replace(networks=self.networks._replace(count=tf.constant(count)))

    def as_keras(self) -> keras.Model:
        """A Keras model [N, D] float64 -> [N], or of rows [N, C + D]; `.save('reward.keras')`
        stores it in one file (see `virl_tf.load_reward`).
        """
        arrays = named_arrays(self.without_room())
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        # Names of their own: Keras's count the models of the process, and equal rewards should be
        # equal files.
        layer = CumulativeReward(shapes, dtype="float64", name="cumulative_reward")
        inputs = keras.Input((self.features.dim,), dtype="float64", name="x")
        model = keras.Model(inputs, layer(inputs), name="reward")
        layer.set_weights(list(arrays.values()))
        return model

    def without_room(self) -> "Reward":
        """The same reward without room for further networks, but for one if it has none."""
        used = max(1, int(self.networks.count))
        networks = tf.nest.map_structure(lambda a: a[:used], self.networks.networks)
        return self._replace(networks=self.networks._replace(networks=networks))


def _checked_points(x: Any, dim: int) -> tf.Tensor:
    x = real_tensor("x", x, dim)
    wanted = f"x must have shape [..., {dim}] (this reward's dimension)"
    if x.shape.rank is None or (x.shape.rank > 0 and x.shape[-1] is None):
        # In a graph whose input has no such shape: known when it runs.
        found = tf.debugging.assert_equal(tf.shape(x)[-1:], [dim], f"{wanted}.")
        with tf.control_dependencies([found] if found is not None else []):
            return tf.identity(x)
    if x.shape.rank == 0 or x.shape[-1] != dim:
        raise InputError(f"{wanted}, got {tuple(x.shape)}{if_paths(x)}.")
    return x


def _scaled(scale: tf.Tensor, density: Policy, x: tf.Tensor) -> tf.Tensor:
    """Scale * log density(x): [N, D] -> [N]."""
    if density.num_components == 0:
        return tf.zeros_like(x[:, 0])

    # A branch, not a product: the gradient of an infinite density would be nan, and one that is
    # left out costs nothing. With a gradient of its own, because tf.vectorized_map cannot convert
    # what TensorFlow's keeps of a branch.
    @tf.custom_gradient
    def value(x: tf.Tensor) -> Any:
        left_out = tf.equal(scale, 0.0)

        def slope(upstream: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(x)
                log_density = density.log_prob(x)
            return tape.gradient(log_density, x, scale * upstream)

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            return tf.cond(left_out, lambda: tf.zeros_like(x), lambda: slope(upstream))

        def scaled() -> tf.Tensor:
            return scale * density.log_prob(x)

        return tf.cond(left_out, lambda: tf.zeros_like(x[:, 0]), scaled), backward

    return value(x)


def evaluate(reward: Reward, x: tf.Tensor) -> tf.Tensor:
    """R(x), compiled once per shape of reward, whatever the numbers of networks and of points:
    float64 [N, D] -> [N].
    """
    parts = reward.base, reward.mixture, reward.networks
    most = min(part.rows_at_once for part in parts)
    return by_blocks(log_prob_of(reward), x, most)


def log_prob_of(reward: Reward) -> Callable[[tf.Tensor], tf.Tensor]:
    """`reward.log_prob` for float64 [N, D], for use inside other compiled functions, too: one graph
    for all rewards of these shapes. TensorFlow keeps every graph with a gradient of our own as long
    as the process lives: 30 MiB for each policy that is fitted.
    """
    return functools.partial(_compiled_log_prob(specs_of(reward)), reward)


@functools.cache
def _compiled_log_prob(specs: Reward) -> Any:
    points = tf.TensorSpec([None, specs.features.dim], DENSITY)
    return compiled(lambda reward, x: reward.log_prob(x), specs, points, jit_compile=False)


class CumulativeValues:
    """R at points that stay the same during a run: a reward that goes on from the one before costs
    its new networks alone.

    Any other reward (another base, fewer networks) is evaluated from its start. Both ways the
    networks are added one by one in their order, so a resumed run, which has nothing to go on from,
    gets the bytes of one that was never stopped.
    """

    def __init__(self, points: Any):
        """For `points` [N, D]."""
        self.points = tf.constant(points, DENSITY)
        self._count = 0  # networks in the sum
        self._known: list[np.ndarray] | None = None  # what identifies the reward of the last call

    def __call__(self, reward: Reward) -> tf.Tensor:
        """R(points), float64 [N]: `evaluate` up to rounding."""
        count = int(reward.networks.count)
        if not self._goes_on(reward):
            self._count = 0
            self._inputs = reward.features(self.points)
            self._base = reward.log_base(self.points)
            self._sum = tf.zeros_like(self._base)
        for i in range(self._count, count):
            network = reward.networks.network(i)
            self._sum += from_network(_compiled_logits(specs_of(network))(network, self._inputs))
        self._count, self._known = count, _identity(reward, count)
        return reward._bounded(self.points, self._base + self._sum)

    def _goes_on(self, reward: Reward) -> bool:
        """Whether the reward of the last call is this one, or was before its last networks were
        added.
        """
        if self._known is None or int(reward.networks.count) < self._count:
            return False
        return all(map(np.array_equal, self._known, _identity(reward, self._count)))


def _identity(reward: Reward, count: int) -> list[np.ndarray]:
    """All but the networks, and the last of the first `count` of them: as many numbers to compare
    whatever T.
    """
    last = reward.networks.network(count - 1) if count else ()
    rest = reward._asdict() | {"networks": last}
    return [np.asarray(array) for array in tf.nest.flatten(rest)]


@functools.cache
def _compiled_logits(specs: FrozenNetwork) -> Any:
    """The logits of networks of these shapes, whatever the number of points."""
    points = tf.TensorSpec([None, specs.input_kernel.shape[0]], NETWORK)
    return compiled(lambda network, z: network.logits(z), specs, points, jit_compile=False)


# --- as named arrays, and as a Keras layer --------------------------------------------------------


def _names(field: str, record: Any) -> Any:
    """An instance of a record type whose fields are their own names."""
    return record(*(f"{field}.{name}" for name in record._fields))


def _reward_names(density: Any) -> Reward:
    """Of a reward whose base and mixture are of this record type."""
    return Reward(
        base=_names("base", density),
        base_exponent="base_exponent",
        networks=NetworkStack(_names("networks", FrozenNetwork), "networks.count"),
        features=_names("features", Features),
        mixture=_names("mixture", density),
        mixture_exponent="mixture_exponent",
        domain=_names("domain", Domain),
    )


_NAMES = _reward_names(Mixture)
_CONDITIONAL_NAMES = _reward_names(ConditionalMixture)
_FLOAT32 = {*_NAMES.networks.networks, "features.frequencies"}
_OTHERS = {**dict.fromkeys(_FLOAT32, "float32"), "networks.count": "int32"}


def _dtypes(names: Reward) -> dict[str, str]:
    return {name: _OTHERS.get(name, "float64") for name in tf.nest.flatten(names)}


DTYPES = _dtypes(_NAMES)
"""Name of each array of a reward -> its dtype, in the order of the fields."""
CONDITIONAL_DTYPES = _dtypes(_CONDITIONAL_NAMES)
"""The same of a reward with contexts."""


def dtypes_of(arrays: Collection[str]) -> dict[str, str]:
    """`DTYPES` or `CONDITIONAL_DTYPES`, whichever reward has arrays of these names."""
    return CONDITIONAL_DTYPES if "base.gains" in arrays else DTYPES


def named_arrays(reward: Reward) -> dict[str, np.ndarray]:
    """{name: array}, the names of `DTYPES` or `CONDITIONAL_DTYPES`."""
    arrays = [np.asarray(array) for array in tf.nest.flatten(reward)]
    dtypes = CONDITIONAL_DTYPES if reward.num_contexts else DTYPES
    return dict(zip(dtypes, arrays, strict=True))


def from_named_arrays(arrays: Mapping[str, Any]) -> Reward:
    """The inverse of `named_arrays`; tensors and arrays alike."""
    dtypes = dtypes_of(arrays)
    names = _CONDITIONAL_NAMES if dtypes is CONDITIONAL_DTYPES else _NAMES
    return tf.nest.map_structure(
        lambda name: tf.convert_to_tensor(arrays[name], dtypes[name]), names
    )


@keras.saving.register_keras_serializable("virl_tf")
class CumulativeReward(keras.layers.Layer):
    """A `Reward` as a Keras layer: its arrays are the layer's (frozen) weights."""

    def __init__(self, arrays: Mapping[str, list[int]], **kwargs: Any):
        """`arrays`: name -> shape, the names of `dtypes_of` them."""
        super().__init__(trainable=False, **kwargs)
        dtypes = dtypes_of(arrays)
        self.shapes = {name: [int(n) for n in arrays[name]] for name in dtypes}
        for name, shape in self.shapes.items():
            options = {"initializer": "zeros", "trainable": False, "name": name.replace(".", "_")}
            self.add_weight(shape=tuple(shape), dtype=dtypes[name], **options)

    @property
    def reward(self) -> Reward:
        """The value this layer holds."""
        arrays = [tf.convert_to_tensor(array) for array in self.weights]
        return from_named_arrays(dict(zip(self.shapes, arrays, strict=True)))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """R(x): [N, D] -> [N]."""
        reward = self.reward
        return reward.log_prob(reward.domain.wrap(tf.cast(x, DENSITY)))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[N]."""
        return input_shape[:-1]

    def get_config(self) -> dict[str, Any]:
        """The arrays' names and shapes: enough to build the layer before its weights are read."""
        config = super().get_config()
        config.pop("trainable")
        return {**config, "arrays": self.shapes}
