"""The cumulative reward R(x) = log q*_0(x) + sum_i phi_i(x) (Eq. 2), as a value: arrays, no
closures.
"""

import functools
import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import keras
import numpy as np
import tensorflow as tf

from virl_tf.mixture import Mixture, empty_mixture
from virl_tf.network_stack import FrozenNetwork, NetworkStack
from virl_tf.numerics import DENSITY, NETWORK, compiled, from_network, specs_of, to_network
from virl_tf.validation import InputError, check_integer, check_unpacked_size


class Reward(NamedTuple):
    """R(x) = base_scale * log base(x) + sum_i phi_i(features((x - shift) / scale)) + mixture_scale
    * log mixture(x).

    Call it: float or array [..., D] -> float64 [...]. It is an unnormalised log density, so TFP's
    samplers take it as it is.

    Attributes:
        base: the prior q*_0 (V-IRL), or the policy (EIM, whose networks are none).
        base_scale: [] float64; 0 leaves the base out (G-EIM).
        networks: the stack of phi_i.
        shift, scale: [D] float64, standardise the points.
        frequencies: [D, F] float32 in radians; the networks see z and sqrt(2) sin, sqrt(2) cos of z
            @ frequencies.
        mixture: an EM mixture of the demonstrations, with which the sum may be averaged at the end;
            else without components.
        mixture_scale: [] float64; 0 leaves the mixture out, as in the paper.
    """

    base: Mixture
    base_scale: Any
    networks: NetworkStack
    shift: Any
    scale: Any
    frequencies: Any
    mixture: Mixture
    mixture_scale: Any

    @property
    def num_inputs(self) -> int:
        """Of the networks: D + 2 F."""
        return self.dim + 2 * int(self.frequencies.shape[1])

    @property
    def dim(self) -> int:
        """D."""
        return int(self.shift.shape[0])

    def __call__(self, x: Any) -> tf.Tensor:
        """R(x): [..., D] -> [...], float64, differentiable in x.

        Raises InputError for another last axis or what is not real.
        """
        try:
            x = tf.convert_to_tensor(x)
        except (TypeError, ValueError) as error:
            raise InputError(f"x must be an array of numbers [..., {self.dim}]: {error}") from error
        if not (x.dtype.is_floating or x.dtype.is_integer or x.dtype.is_bool):
            raise InputError(
                f"x must be an array of real numbers [..., {self.dim}], got dtype {x.dtype.name}."
            )
        if x.shape.rank == 0 or x.shape[-1] != self.dim:
            raise InputError(
                f"x must have shape [..., {self.dim}] (this reward's dimension), got {tuple(x.shape)}."
            )
        x = tf.cast(x, DENSITY)
        flat = evaluate(self, tf.reshape(x, [-1, self.dim]))
        return tf.reshape(flat, tf.shape(x)[:-1])

    def inputs(self, x: tf.Tensor) -> tf.Tensor:
        """What the networks see of x: float64 [N, D] -> float32 [N, D + 2 F], standardised points
        and their Fourier features.
        """
        z = to_network((x - self.shift) / self.scale)
        if self.frequencies.shape[1] == 0:
            return z
        phases = tf.matmul(z, self.frequencies)
        # The factor gives the features the variance of standardised inputs.
        return tf.concat(
            [
                z,
                np.float32(np.sqrt(2.0)) * tf.sin(phases),
                np.float32(np.sqrt(2.0)) * tf.cos(phases),
            ],
            axis=1,
        )

    def log_base(self, x: tf.Tensor) -> tf.Tensor:
        """All but the networks: [N, D] -> [N]; a density whose scale is 0 adds 0, whatever it says."""
        return _scaled(self.base_scale, self.base, x) + _scaled(self.mixture_scale, self.mixture, x)

    def log_prob(self, x: tf.Tensor) -> tf.Tensor:
        """R(x) for float64 [N, D] -> [N], not compiled: for use inside other compiled functions."""
        return self.log_base(x) + self.networks.sum_logits(self.inputs(x))

    def average(self, exponent: float) -> "Reward":
        """The geometric mean (1 - exponent) R(x) + exponent * log mixture(x): R's networks and
        scales are multiplied.
        """
        networks = self.networks._replace(networks=self.networks.networks.scale(1.0 - exponent))
        return self._replace(
            base_scale=(1.0 - exponent) * self.base_scale,
            networks=networks,
            mixture_scale=(1.0 - exponent) * self.mixture_scale + exponent,
        )

    def truncate(self, count: int) -> "Reward":
        """The reward with its first `count` networks alone: log q*_count, where every phi_t is one
        network.
        """
        count = check_integer("count", count, 0, int(self.networks.count))
        return self._replace(networks=self.networks._replace(count=tf.constant(count)))

    def as_keras(self) -> keras.Model:
        """A Keras model [N, D] float64 -> [N]; `.save('reward.keras')` stores it in one file (see
        `load_reward`).
        """
        used = max(
            1, int(self.networks.count)
        )  # room for further networks is not worth bytes in a file
        networks = self.networks._replace(
            networks=tf.nest.map_structure(lambda a: a[:used], self.networks.networks)
        )
        arrays = [np.asarray(a) for a in tf.nest.flatten(self._replace(networks=networks))]
        # With names of their own: Keras's count the models of the process, and equal rewards should
        # be equal files.
        layer = CumulativeReward(
            [list(a.shape) for a in arrays], dtype="float64", name="cumulative_reward"
        )
        inputs = keras.Input((self.dim,), dtype="float64", name="x")
        model = keras.Model(inputs, layer(inputs), name="reward")
        layer.set_weights(arrays)
        return model


def _scaled(scale: tf.Tensor, density: Mixture, x: tf.Tensor) -> tf.Tensor:
    """Scale * log density(x): [N, D] -> [N]."""
    if density.num_components == 0:
        return tf.zeros_like(x[:, 0])
    # A branch, not a product: the gradient of an infinite density would be nan, and one that is
    # left out costs nothing.
    return tf.cond(
        tf.equal(scale, 0.0), lambda: tf.zeros_like(x[:, 0]), lambda: scale * density.log_prob(x)
    )


def evaluate(reward: Reward, x: tf.Tensor) -> tf.Tensor:
    """R(x), compiled once per shape of reward, whatever the numbers of networks and of points:
    float64 [N, D] -> [N].
    """
    return compiled_log_prob(specs_of(reward))(reward, x)


@functools.cache
def compiled_log_prob(specs: Reward) -> Any:
    """The function behind `evaluate` for rewards of these shapes."""
    points = tf.TensorSpec([None, specs.dim], DENSITY)
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
            self._count, self._inputs, self._base = (
                0,
                reward.inputs(self.points),
                reward.log_base(self.points),
            )
            self._sum = tf.zeros_like(self._base)
        for i in range(self._count, count):
            network = reward.networks.network(i)
            self._sum += from_network(_compiled_logits(specs_of(network))(network, self._inputs))
        self._count, self._known = count, _identity(reward, count)
        return self._base + self._sum

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
    rest = (
        reward.base,
        reward.base_scale,
        reward.shift,
        reward.scale,
        reward.frequencies,
        reward.mixture,
        reward.mixture_scale,
    )
    return [np.asarray(array) for array in tf.nest.flatten((rest, last))]


@functools.cache
def _compiled_logits(specs: FrozenNetwork) -> Any:
    """The logits of networks of these shapes, whatever the number of points."""
    points = tf.TensorSpec([None, specs.input_kernel.shape[0]], NETWORK)
    return compiled(lambda network, z: network.logits(z), specs, points, jit_compile=False)


_FIELD_DTYPES = (
    ["float64"] * 4 + ["float32"] * 6 + ["int32"] + ["float64"] * 2 + ["float32"] + ["float64"] * 4
)
_VERSIONS = 13, 14, 18  # arrays in a file: the first ones had no features, the next no mixture


def _unflatten(arrays: list[Any]) -> Reward:
    base, scale, networks, count = (
        Mixture(*arrays[:3]),
        arrays[3],
        FrozenNetwork(*arrays[4:10]),
        arrays[10],
    )
    shift, data_scale, frequencies = arrays[11:14]
    mixture, mixture_scale = Mixture(*arrays[14:17]), arrays[17]
    return Reward(
        base,
        scale,
        NetworkStack(networks, count),
        shift,
        data_scale,
        frequencies,
        mixture,
        mixture_scale,
    )


@keras.saving.register_keras_serializable("virl_tf")
class CumulativeReward(keras.layers.Layer):
    """A `Reward` as a Keras layer: its arrays are the layer's (frozen) weights."""

    def __init__(self, shapes: list[list[int]], **kwargs: Any):
        super().__init__(trainable=False, **kwargs)
        self.shapes = [[int(n) for n in shape] for shape in shapes]
        self._arrays = [
            self.add_weight(
                shape=tuple(shape),
                dtype=dtype,
                initializer="zeros",
                trainable=False,
                name=f"array_{i}",
            )
            for i, (shape, dtype) in enumerate(zip(self.shapes, _FIELD_DTYPES, strict=True))
        ]

    @property
    def reward(self) -> Reward:
        """The value this layer holds."""
        return _unflatten([tf.convert_to_tensor(a) for a in self._arrays])

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """R(x): [N, D] -> [N]."""
        return self.reward.log_prob(tf.cast(x, DENSITY))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[N]."""
        return input_shape[:-1]

    def get_config(self) -> dict[str, Any]:
        """The arrays' shapes: enough to build the layer before its weights are read."""
        config = super().get_config()
        config.pop("trainable")
        return {**config, "shapes": self.shapes}


def load_reward(path: Path | str) -> Reward:
    """The reward in a `.keras` file written by `Reward.as_keras().save(path)`.

    Only the arrays are used: Keras, which would build whatever the file describes, is not asked.

    Raises:
        InputError: no such file, not a Keras file, or one that holds something else. Nothing in the
            file is executed.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no reward file {path}.")
    try:
        check_unpacked_size(path)
        with zipfile.ZipFile(path) as file:
            _check_description(file)
            content = file.read("model.weights.h5")
        with h5py.File(io.BytesIO(content), "r") as weights:
            names = [f"layers/cumulative_reward/vars/{i}" for i in range(len(_FIELD_DTYPES))]
            written = sum(name in weights for name in names)
            if written not in _VERSIONS:
                raise ValueError(f"it holds {written} arrays")
            arrays = [_read_array(weights, name, len(content)) for name in names[:written]]
        d = len(arrays[_VERSIONS[0] - 1])
        arrays += [np.zeros((d, 0), np.float32), *map(np.asarray, empty_mixture(d)), np.zeros(())][
            written - _VERSIONS[0] :
        ]
        _check_arrays(arrays)
    except (
        ValueError,
        TypeError,
        OSError,
        KeyError,
        AttributeError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise InputError(f"{path} is not a reward saved by virl_tf: {error}") from error
    return _unflatten([tf.constant(a) for a in arrays])


def _check_description(file: zipfile.ZipFile) -> None:
    """Raise ValueError unless the members and the Keras classes are those of `Reward.as_keras`."""
    classes = set()
    json.loads(
        file.read("config.json"), object_hook=lambda item: classes.add(item.get("class_name", ""))
    )
    wanted = {"Functional", "InputLayer", "CumulativeReward", "DTypePolicy", "__keras_tensor__", ""}
    if (
        set(file.namelist()) != {"metadata.json", "config.json", "model.weights.h5"}
        or classes != wanted
    ):
        raise ValueError(
            f"it holds {file.namelist()[:9]} and describes {sorted(map(str, classes))[:9]}"
        )


def _read_array(weights: h5py.File, name: str, most: int) -> np.ndarray:
    """One array of at most `most` bytes.

    HDF5 can also point to other files or declare data that it does not hold.
    """
    parts = name.split("/")
    links = [weights.get("/".join(parts[: i + 1]), getlink=True) for i in range(len(parts))]
    dataset = weights[name] if all(isinstance(link, h5py.HardLink) for link in links) else None
    if (
        not isinstance(dataset, h5py.Dataset)
        or dataset.external
        or dataset.is_virtual
        or dataset.nbytes > most
    ):
        raise ValueError(f"{name} is not an array within the file")
    return dataset[()]


def _check_arrays(arrays: list[np.ndarray]) -> None:
    """Raise ValueError unless the dtypes and shapes are those of one reward, its mixture and scales
    are finite.
    """
    means, kernels, hidden = (np.asarray(arrays[i]) for i in (1, 4, 6))
    (k, d), (t, _, h), layers = means.shape, kernels.shape, hidden.shape[1]
    mixture, scales = [(k,), (k, d), (k, d, d), ()], [(d,), (d,)]
    m = len(arrays[14]) if arrays[14].ndim else -1
    features = (d, arrays[13].shape[-1]) if arrays[13].ndim == 2 else ()
    inputs = d + 2 * features[1] if features else d
    networks = [(t, inputs, h), (t, h), (t, layers, h, h), (t, layers, h), (t, h, 1), (t, 1)]
    average = [(m,), (m, d), (m, d, d), ()]
    if [a.shape for a in arrays] != [*mixture, *networks, (), *scales, features, *average] or [
        str(a.dtype) for a in arrays
    ] != _FIELD_DTYPES:
        raise ValueError("its arrays have other shapes or dtypes")
    if m == 0 and arrays[17] != 0.0:
        raise ValueError("its average is with a mixture that has no components")
    if (
        not all(np.isfinite(arrays[i]).all() for i in (0, 1, 2, 3, *range(11, 18)))
        or not 0 <= arrays[10] <= t
    ):
        raise ValueError(
            "its mixture, scales or frequencies are not finite, or its number of networks is impossible"
        )
