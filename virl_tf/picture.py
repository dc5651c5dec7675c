"""The small picture of a notebook: draws of a policy, coloured by the reward."""

import base64
import html
import io

import numpy as np
from matplotlib.figure import Figure

from virl_tf.mixture import Mixture
from virl_tf.reward import Reward

DRAWS = 1000
# Nats below the highest reward of a draw; all lower ones have the darkest colour.
DEPTH = 12.0


def as_html(text: str, picture: bytes | None = None) -> str:
    """Lines of text, and below them a PNG, for `_repr_html_`."""
    lines = f"<pre>{html.escape(text)}</pre>"
    if picture is None:
        return lines
    source = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    return f'{lines}<img alt="draws of the policy, coloured by the reward" src="{source}">'


def picture_of(reward: Reward, policy: Mixture) -> bytes:
    """A PNG of draws of a policy, the same ones each time: the first two columns, or the only one
    against the reward.
    """
    draws = policy.sample(DRAWS, 0)
    rewards = np.asarray(reward.log_prob(draws))
    depth = np.maximum(rewards - rewards.max(), -DEPTH)
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.subplots()
    x = np.asarray(draws)
    y = x[:, 1] if policy.dim > 1 else depth
    image = axes.scatter(x[:, 0], y, c=depth, s=4, vmin=-DEPTH, vmax=0.0)
    axes.set_xlabel("x0")
    axes.set_ylabel("x1" if policy.dim > 1 else "reward")
    rest = f" (columns 3 to {policy.dim} are not shown)" if policy.dim > 2 else ""
    axes.set_title(f"{DRAWS} draws of the policy{rest}", fontsize=9)
    figure.colorbar(image, label="reward, nats below the highest")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()
