"""V-IRL, EIM and G-EIM: one loop, a row of data each.

| | proposal | base (numerator of the weights) | logit phi_t(x) | target of the policy | recovered
reward |
|---|---|---|---|---|---|
| EIM | q_t | log q_t, so w = 1 | net | log q_t + net | log q_{t+1} |
| G-EIM | mu_t | log q_t | net - log q_t | net = R_t | net |
| V-IRL | mu_t | log q*_t | net | log q*_t + net | log q*_{t+1} = the target |
"""

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes:
        name: what a user calls it.
        fusion: draw negatives from mu_t = 0.5 q~_t + 0.5 p~ (else from the policy alone).
        base: the density q the classifier compares the expert with: the policy's, or the recovered
            reward q*_t. It is the numerator of the importance weights q / proposal.
        logit_offset: what is subtracted from the network's output to give the logit: nothing, or
            the log density of the policy or of the proposal.
        accumulate: the target of the policy is base + network (else the network alone).
        reward: what is recovered: the target, or the updated policy's log density.
        importance_weights: weight the negatives by base / proposal (else all by one).
    """

    name: str
    fusion: bool
    base: Literal["policy", "reward"]
    logit_offset: Literal["none", "policy", "proposal"]
    accumulate: bool
    reward: Literal["target", "policy"]
    importance_weights: bool = True

    @property
    def family(self) -> str:
        """The paper's method that this is, or is an ablation of: whose hyperparameters it takes."""
        return self.name.split("_")[0]


EIM = Method(
    "eim", fusion=False, base="policy", logit_offset="none", accumulate=True, reward="policy"
)
GEIM = Method(
    "geim", fusion=True, base="policy", logit_offset="policy", accumulate=False, reward="target"
)
VIRL = Method(
    "virl", fusion=True, base="reward", logit_offset="none", accumulate=True, reward="target"
)

PAPER_METHODS = (VIRL, GEIM, EIM)

ABLATIONS = (
    replace(VIRL, name="virl_no_kde", fusion=False),
    replace(VIRL, name="virl_no_weights", importance_weights=False),
    replace(EIM, name="eim_fusion", fusion=True),
    # R - log mu_t instead of the paper's R - log q_t: with it G-EIM's reward covers modes that its
    # policy never explored.
    replace(GEIM, name="geim_fusion_logit", logit_offset="proposal"),
)

METHODS: dict[str, Method] = {method.name: method for method in (*PAPER_METHODS, *ABLATIONS)}
