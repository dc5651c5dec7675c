"""When a run is complete."""

from virl_tf.discriminator.fit import FitInfo
from virl_tf.importance import effective_sample_size
from virl_tf.shapes import Array, Float64

LEAST_EFFECTIVE = 0.05
"""Share of the importance weights from which a verdict on phi_t counts: the held-out loss of fewer
is that of a few points (docs/decisions.md, min-gain).
"""


def found_nothing(fit: FitInfo, min_gain: float | None) -> bool:
    """Whether phi_t tells held-out points apart no better than the best constant does.

    At convergence phi_T = 0 everywhere (below Eq. 2). A loss that is nan says so, too.

    Args:
        min_gain: `loop.min_gain`, in nats of held-out cross-entropy; None: never.
    """
    return min_gain is not None and not fit.chance_loss - fit.validation_loss > min_gain


def enough_effective(log_weights: Float64[Array, " N"]) -> bool:
    """Whether a phi_t trained with these weights that found nothing ends the run. If not, it is
    dropped alone, and the next one meets weights of a policy that is nearer to q*_t.
    """
    effective = float(effective_sample_size(log_weights))
    return effective >= LEAST_EFFECTIVE * len(log_weights)
