"""V-IRL, EIM and G-EIM: one loop, a row of data each.

| | proposal | base | logit phi_t(x) | target of the policy | recovered reward | ends |
|---|---|---|---|---|---|---|
| EIM | q_t | log q_t | net | log q_t + net | log q_{t+1} | after T |
| G-EIM | mu_t | log q_t | net - log q_t | net = R_t | net | after T |
| V-IRL | mu_t | log q*_t | net | log q*_t + net | log q*_{t+1} = the target | may end early |

The base is the numerator of the importance weights; EIM's are w = 1.
"""

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes:
        name: what a user calls it.
        family: the paper's method that this is, or is an ablation of: "virl", "geim" or "eim". Its
            hyperparameters are those of this family.
        fusion: draw negatives from mu_t = 0.5 q~_t + 0.5 p~ (else from the policy alone).
        base: the density q the classifier compares the expert with: the policy's, or the recovered
            reward q*_t. It is the numerator of the importance weights q / proposal.
        logit_offset: what is subtracted from the network's output to give the logit: nothing, or
            the log density of the policy or of the proposal.
        accumulate: the target of the policy is base + network (else the network alone).
        reward: what is recovered: the target, or the updated policy's log density.
        importance_weights: weight the negatives by base / proposal (else all by one).
        converges: the reward is a sum that is complete when phi_t finds nothing (phi_T = 0 in the
            paper). Then `loop.min_gain` may end a run, and `loop.mixture_average` pool its reward.
    """

    name: str
    family: Literal["virl", "geim", "eim"]
    fusion: bool
    base: Literal["policy", "reward"]
    logit_offset: Literal["none", "policy", "proposal"]
    accumulate: bool
    reward: Literal["target", "policy"]
    importance_weights: bool = True
    converges: bool = False


EIM = Method(
    "eim",
    "eim",
    fusion=False,
    base="policy",
    logit_offset="none",
    accumulate=True,
    reward="policy",
)
GEIM = Method(
    "geim",
    "geim",
    fusion=True,
    base="policy",
    logit_offset="policy",
    accumulate=False,
    reward="target",
)
VIRL = Method(
    "virl",
    "virl",
    fusion=True,
    base="reward",
    logit_offset="none",
    accumulate=True,
    reward="target",
    converges=True,
)

PAPER_METHODS = (VIRL, GEIM, EIM)

ABLATIONS = (
    replace(VIRL, name="virl_no_kde", fusion=False),
    replace(VIRL, name="virl_no_weights", importance_weights=False),
    replace(EIM, name="eim_fusion", fusion=True),
    # R - log mu_t instead of the paper's R - log q_t: with it G-EIM's reward covers modes that its
    # policy never explored, and nothing holds it down off the data (docs/paper-experiments.md).
    replace(GEIM, name="geim_fusion_logit", logit_offset="proposal"),
)

METHODS: dict[str, Method] = {method.name: method for method in (*PAPER_METHODS, *ABLATIONS)}
