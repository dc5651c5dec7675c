"""TensorBoard event files of a run, written by TensorFlow alone: the package `tensorboard` is only
needed to look at them.

`tf.summary.scalar` and `tf.summary.image` live in that package; `tf.summary.write` does not, and
writes the same events.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from virl_tf.discriminator.fit import FitInfo
from virl_tf.irl import State
from virl_tf.metrics import grid_around
from virl_tf.mixture import Mixture
from virl_tf.reward import CumulativeValues

tfd = tfp.distributions
PIXELS = 64  # side of the image of the reward
DEPTH = 12.0  # nats below its maximum that it shows
# Five colours of Matplotlib's viridis, dark to bright; a run does not import Matplotlib.
_PALETTE = np.array(
    [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], np.float64
)
# Column of a row -> the group it is shown in; what is not here was measured by `evaluate`.
_GROUPS = {
    **dict.fromkeys(FitInfo._fields, "discriminator"),
    "dropped": "discriminator",
    **dict.fromkeys(("effective_sample_size", "num_negatives"), "importance_weights"),
    "mixture_exponent": "pooling",
    **dict.fromkeys(("elbo", "component_kl", "effective_components", "rejected_samples"), "policy"),
    **dict.fromkeys(
        ("sample_seconds", "training_seconds", "policy_seconds", "evaluation_seconds"), "cpu"
    ),
}
_PATTERN = "events.out.tfevents.*"


class EventFiles:
    """An observer that writes each iteration's numbers, KL and weight of every component, and in
    2-D an image of the reward.

    A resumed run has every step once: steps that are about to be done again are first removed from
    the files of the run before.
    """

    def __init__(self, path: Path, demonstrations: np.ndarray, start: State):
        """In the folder `path`, for a run that goes on from the state `start`; demonstrations [N,
        D] give the image's box.
        """
        path.mkdir(parents=True, exist_ok=True)
        drop_steps(path, start.t)
        self._policy = start.policy
        self._values = (
            CumulativeValues(grid_around(demonstrations, PIXELS).points)
            if demonstrations.shape[1] == 2
            else None
        )
        self._writer = tf.summary.create_file_writer(str(path))

    def __enter__(self) -> "EventFiles":
        """Itself."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Close the file."""
        self._writer.close()

    def __call__(self, state: State, row: Mapping[str, Any]) -> None:
        """Write iteration row['t']; on disk when this returns."""
        step = int(row["t"])
        numbers = {name: float(value) for name, value in row.items() if name != "t"}
        if state.pooled:  # no network was trained
            numbers = {name: value for name, value in numbers.items() if not np.isnan(value)}
        with self._writer.as_default():
            for name, value in numbers.items():
                _write_scalar(f"{_GROUPS.get(name, 'evaluation')}/{name}", value, step)
            if isinstance(state.policy, Mixture):  # experts have no weights of their own
                self._write_components(state.policy, step)
            if self._values is not None:
                _write_reward_image(heat_map(self._values(state.reward).numpy()), step)
        self._writer.flush()
        self._policy = state.policy

    def _write_components(self, policy: Mixture, step: int) -> None:
        divergences = component_divergences(policy, self._policy)
        for o, (divergence, log_weight) in enumerate(
            zip(divergences, np.asarray(policy.log_weights), strict=True)
        ):
            _write_scalar(f"component_kl/{o:02d}", divergence, step)
            _write_scalar(f"component_weight/{o:02d}", np.exp(log_weight), step)


def component_divergences(new: Mixture, old: Mixture) -> np.ndarray:
    """KL(new_o || old_o) of each component, [K]: how far it went in the iteration."""
    of_new, of_old = (tfd.MultivariateNormalTriL(of.means, of.scale_trils) for of in (new, old))
    return of_new.kl_divergence(of_old).numpy()


def heat_map(values: np.ndarray) -> np.ndarray:
    """Values [R * R] on a grid (second coordinate fastest) as an RGB image [R, R, 3] uint8, the
    second coordinate upwards.

    Values that are not finite get the darkest colour.
    """
    finite = np.where(np.isfinite(values), values, -np.inf)
    top = finite.max() if np.isfinite(finite).any() else 0.0
    side = int(np.sqrt(len(values)))
    height = np.clip(1.0 + (finite - top) / DEPTH, 0.0, 1.0).reshape(side, side).T[::-1]
    levels = np.linspace(0.0, 1.0, len(_PALETTE))
    return (
        np.stack([np.interp(height, levels, channel) for channel in _PALETTE.T], axis=-1)
        .round()
        .astype(np.uint8)
    )


def _metadata(plugin: str, data_class: str) -> bytes:
    """How TensorBoard is told which of its views shows a value."""
    proto = tf.compat.v1.SummaryMetadata
    return proto(
        plugin_data=proto.PluginData(plugin_name=plugin), data_class=data_class
    ).SerializeToString()


def _write_scalar(name: str, value: float, step: int) -> None:
    tf.summary.write(
        name, tf.constant(value, tf.float32), step, _metadata("scalars", "DATA_CLASS_SCALAR")
    )


def _write_reward_image(image: np.ndarray, step: int) -> None:
    """A view of TensorBoard takes [width, height, PNG] as strings."""
    png = tf.io.encode_png(image).numpy()
    content = tf.constant([str(image.shape[1]).encode(), str(image.shape[0]).encode(), png])
    tf.summary.write("reward", content, step, _metadata("images", "DATA_CLASS_BLOB_SEQUENCE"))


def drop_steps(path: Path, first: int) -> None:
    """Remove the steps from `first` on from the event files in a folder, and a last record that a
    kill has cut short.
    """
    for file in sorted(path.glob(_PATTERN)):
        kept, changed = [], False
        try:
            for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
                event = tf.compat.v1.Event.FromString(record)
                gone = event.HasField("summary") and event.step >= first
                changed = changed or gone
                kept += [] if gone else [record]
        except tf.errors.DataLossError:
            changed = True
        if changed:
            _rewrite(file, kept)


def _rewrite(file: Path, records: list[bytes]) -> None:
    # A name that TensorBoard does not read, and that `files.remove_partial` removes after a kill.
    temporary = file.with_name(f".{file.name}-kept.partial")
    with tf.io.TFRecordWriter(str(temporary)) as writer:
        for record in records:
            writer.write(record)
    os.replace(temporary, file)
