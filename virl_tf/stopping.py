"""When a run is complete."""

from virl_tf.discriminator.fit import FitInfo

IN_A_ROW = 2
"""phi_t that find nothing, one after the other, after which a run is over: one verdict is that of
one draw of negatives and a tenth of the demonstrations (docs/decisions.md, min-gain).
"""


def found_nothing(fit: FitInfo, min_gain: float | None) -> bool:
    """Whether phi_t tells held-out points apart no better than the best constant does.

    At convergence phi_T = 0 everywhere (below Eq. 2). A loss that is nan says so, too.

    Args:
        min_gain: `loop.min_gain`, in nats of held-out cross-entropy; None: never.
    """
    return min_gain is not None and not fit.chance_loss - fit.validation_loss > min_gain
