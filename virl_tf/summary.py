"""What a fit to a user's demonstrations found, in plain values, and what it has to warn of."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from virl_tf.conditional import ConditionalMixture, Policy, conditioned, log_context_density
from virl_tf.contexts import far_away
from virl_tf.demonstrations import Prepared
from virl_tf.domain import Domain
from virl_tf.em.choice import MixtureChoice
from virl_tf.em.em import em_mixture
from virl_tf.em.growth import rows_looked_at
from virl_tf.methods import Method
from virl_tf.mixture import Mixture, background, in_one_width
from virl_tf.numerics import numpy_seed
from virl_tf.problem import Problem
from virl_tf.reward import Reward
from virl_tf.score import REWARD, Score, score
from virl_tf.shapes import Array, Bool, Float64

FEW_EFFECTIVE = 0.01  # of the importance weights, or of the normaliser's draws
LEAST_LACK = 0.01  # nats each, below which being behind EM makes no fit worth less
# Share of the demonstrated contexts that are rarer than one that is doubted, and what rounding may
# make of a density, in nats, where contexts are few distinct ones
# (docs/decisions-contexts.md, unseen-contexts).
RARE, LEEWAY = 0.01, 0.01


class FitWarning(UserWarning):
    """Something that makes a fit worth less; its text says what to do next."""


def summarise(
    prepared: Prepared,
    choice: MixtureChoice,
    method: Method,
    problem: Problem,
    fitted: tuple[Reward, Policy, pd.DataFrame],
) -> dict[str, Any]:
    """Everything about a fit but its result, for summary.json.

    Args:
        fitted: reward, policy and history.
    """
    reward, policy, history = fitted
    data, test, seed = prepared.train, prepared.test, problem.seed
    train, kde = data.rows, problem.kernels
    found = None
    if len(test):
        em_seed = numpy_seed(seed, 0, "EM")
        em = em_mixture(train, policy.num_components, em_seed, choice.covariances)
        em_given = conditioned(em, data.num_contexts)
        found = score(test, reward, policy, kde, em_given, seed, prepared.test_groups)
    trained = history[history["epochs"] > 0]  # the pooling's row comes after training's
    last = trained.iloc[-1]
    from_mixture = problem.from_mixture and method.base == "reward"
    gaussian_prior = (
        method.base == "reward" and not from_mixture and reward.base.num_components == 1
    )
    kernels_drawn = method.fusion and problem.estimate is problem.kernels
    exponent = float(history["mixture_exponent"].iloc[-1])
    size = {"final": float(last["effective_sample_size"]), "of": int(last["num_negatives"])}
    return {
        "method": method.name,
        "seed": seed,
        "demonstrations": prepared.identity,
        "rows": {"train": len(train), "held_out": len(test), "repeated": prepared.repeated},
        "columns": _columns(prepared.names, train, data.domain),
        "components": policy.num_components,
        "components_reason": choice.reason,
        "components_scores": {str(count): mean for count, mean in choice.scores.items()},
        "bandwidth": kde.bandwidth.numpy().tolist() if method.fusion else None,
        "score": None if found is None else found._asdict(),
        "num_iterations": len(trained),
        "validation_loss": float(last["validation_loss"]),
        "chance_loss": float(last["chance_loss"]),
        "mixture_exponent": exponent,
        "networks": int(reward.networks.count),
        "from_mixture": from_mixture,
        "mixture": _mixture(reward.mixture),
        "effective_sample_size": size,
        "warnings": [
            *prepared.warnings,
            *_of_rows(prepared, by_em=problem.joint.num_components > 0),
            *training_warnings(trained, gaussian_prior, exponent, kernels_drawn),
            *score_warnings(found),
        ],
    }


def _mixture(mixture: Policy) -> dict[str, Any] | None:
    """What EM found: components; how many means they have; the share of what is wider than all rows
    (`virl_tf.em.stacking`). None: no mixture, or one given a context.
    """
    if not isinstance(mixture, Mixture) or not mixture.num_components:
        return None
    modes = in_one_width(mixture)
    around = np.exp(modes.log_weights.numpy())[background(modes)]
    return {
        "components": mixture.num_components,
        "means": modes.num_components,
        "background": float(around.sum()),
    }


def rare_context(mixture: Policy, contexts: Float64[Array, "N C"]) -> float | None:
    """The log density of contexts below which a share of `RARE` of the demonstrated ones lie. None:
    no mixture given a context.

    Args:
        mixture: of the reward that is returned: EM on further rows moves its density.
    """
    if not isinstance(mixture, ConditionalMixture) or not mixture.num_components:
        return None
    return float(np.quantile(log_context_density(mixture, contexts), RARE))


def _columns(names: Sequence[str], x: np.ndarray, domain: Domain) -> list[dict[str, Any]]:
    """Of an angle with the turn [cut, cut + period) that its values are moved into."""
    measures: dict[str, Any] = {"mean": np.mean, "standard_deviation": np.std}
    measures |= {"min": np.min, "max": np.max}
    found = [
        {"name": name, **{key: float(measure(column)) for key, measure in measures.items()}}
        for name, column in zip(names, x.T, strict=True)
    ]
    for i in np.flatnonzero(np.asarray(domain.period) > 0.0):
        found[i]["turn"] = [float(domain.lower[i]), float(domain.upper[i])]
    return found


# --- warnings: what is wrong, and what to do next -------------------------------------------------


def context_doubts(
    c: Float64[Array, " C"], reward: Reward, summary: Mapping[str, Any]
) -> tuple[str, ...]:
    """Why reward and policy of a fit are a guess in context c: columns that are `far_away`, or else
    that it is rarer than 99 % of the demonstrated ones, by the density that EM's mixture implies:
    in a gap, at an end, or of values never demonstrated together.

    Of fits before 1.0.41, and of rewards without an EM mixture, columns alone.
    """
    c, columns = np.asarray(c), summary["columns"]
    far = far_away(c, columns)
    if far or not _rare(c[None], reward, summary)[0]:
        return tuple(far)
    named = zip(columns, c, strict=False)
    at = ", ".join(f"{column['name']} = {value:g}" for column, value in named)
    return (
        f"context {at} is rarer than {100.0 * (1.0 - RARE):.0f} % of the demonstrated ones: reward "
        "and policy there are a guess.",
    )


def doubts_of_contexts(
    c: Float64[Array, "M C"], reward: Reward, summary: Mapping[str, Any]
) -> tuple[str, ...]:
    """In how many of several contexts reward and policy are a guess, and why in the first of them;
    see `context_doubts`.
    """
    far = np.array([bool(far_away(one, summary["columns"])) for one in c])
    guessed = far | _rare(c, reward, summary)
    if not guessed.any():
        return ()
    first = context_doubts(c[guessed.argmax()], reward, summary)[0]
    return (f"{guessed.sum()} of {len(c)} contexts were not demonstrated; the first: {first}",)


def _rare(
    c: Float64[Array, "M C"], reward: Reward, summary: Mapping[str, Any]
) -> Bool[Array, " M"]:
    """Which contexts are rarer than 99 % of the demonstrated ones; none where that is not known."""
    rare, mixture = summary.get("rare_context"), reward.mixture
    if rare is None or not isinstance(mixture, ConditionalMixture):
        return np.zeros(len(c), bool)
    return log_context_density(mixture, c).numpy() < rare - LEEWAY


def _of_rows(prepared: Prepared, by_em: bool) -> list[str]:
    n, d = prepared.train.rows.shape
    looked_at, to_see = len(rows_looked_at(n, d)), min(n, 10 * (d + 1))
    n += len(prepared.test)
    if n < 10 * (d + 1):
        return [
            f"{n} demonstrations in {d} dimensions are few: reward and policy "
            "mostly repeat them. Describe a demonstration by fewer numbers, or collect more."
        ]
    if by_em and looked_at < to_see:
        return [
            f"EM, which a fit starts from, looks at {looked_at} of {n} demonstrations where they "
            f"have {d} dimensions, and these are few. Describe a demonstration by fewer numbers."
        ]
    return []


def training_warnings(
    trained: pd.DataFrame,
    gaussian_prior: bool,
    exponent: float = 0.0,
    kernels_drawn: bool = True,
) -> list[str]:
    """Of the iterations' rows.

    The last iteration's weights count: later networks correct what was learned from bad ones.

    Args:
        gaussian_prior: whether one Gaussian, wide where modes are apart, is q*_0.
        exponent: of the EM mixture that the reward was averaged with.
        kernels_drawn: whether half of the negatives were draws of kernels.
    """
    found = []
    few = ~(trained["effective_sample_size"] >= FEW_EFFECTIVE * trained["num_negatives"])
    if few.iloc[-1]:
        last = trained.iloc[-1]
        cures = ["fewer columns, or more demonstrations"]
        if gaussian_prior and few.iloc[0]:
            cures.insert(0, _setting("loop.prior", "mixture"))
        elif kernels_drawn:
            cures.insert(0, _setting("kde.estimator", "mixture"))
        found.append(
            f"only {last['effective_sample_size']:.0f} of {int(last['num_negatives'])} "
            f"importance weights were effective in the last iteration ({int(last['t'])}): the "
            f"negatives miss where the reward is high. Try {', or '.join(cures)}."
        )
    untrained = trained["t"][(trained["best_epoch"] < 0) & (trained["dropped"] == 0)]
    if len(untrained):
        found.append(
            f"no epoch of network {', '.join(map(str, untrained))} had a finite held-out loss: the "
            "reward has it as it began. Try a smaller training.learning_rate."
        )
    if trained["dropped"].all():
        averaged = " (and the EM mixture it is averaged with)" if exponent > 0.0 else ""
        found.append(
            f"no network found anything, so each was dropped: the reward is its prior{averaged}. "
            "If that is not all there is, try more demonstrations, fewer columns, or "
            f"{_setting('loop.min_gain', None)} to keep it."
        )
    elif exponent == 1.0:
        found.append(
            "held-out demonstrations are likeliest under the EM mixture alone: the networks have "
            "no share in the reward. If that is not all there is, try more demonstrations or "
            "fewer columns."
        )
    return found


def reward_in_words(summary: Mapping[str, Any]) -> str:
    """What the reward of a fit is the sum of; "" where EM has no share."""
    exponent = summary["mixture_exponent"]
    starts_from_it = summary.get("from_mixture")  # fits before 1.0.25 do not say
    if not (exponent or starts_from_it):
        return ""
    networks, mixture = f"{1.0 - exponent:.2f} x the sum of", "the log density of an EM mixture"
    if exponent == 1.0 or (summary.get("networks") == 0 and starts_from_it):
        return f"the reward: {mixture} alone"
    if starts_from_it:
        plural = "s" if summary["networks"] > 1 else ""
        return f"the reward: {mixture} + {networks} {summary['networks']} network{plural}"
    return f"the reward: {networks} discriminators + {exponent:.2f} x {mixture}"


def _setting(key: str, value: str | None) -> str:
    """How a hyperparameter is overridden, on the command line and in Python."""
    section, name = key.split(".")
    text = "null" if value is None else value
    return f"--set {key}={text} (in Python hparams={ {section: {name: value}} })"


def score_warnings(found: Score | None) -> list[str]:
    """Of how likely held-out demonstrations are; none if none were scored."""
    if found is None:
        return []
    warned = []
    if by := _lack(found, REWARD):
        warned.append(
            f"held-out demonstrations are less likely under the reward than under EM, by {by:.2g} "
            "nats each: here EM is the better model. Try more demonstrations or fewer columns."
        )
    if by := _lack(found, "policy"):
        text = "held-out demonstrations are less likely under the policy than under EM"
        how = "with more components to the reward (infer --components, fit_policy"
        how += (
            " with contexts=), or in one context (infer --context)" if found.num_contexts else ")"
        )
        cure = f"it misses some of them. Fit one {how}."
        if found.over_em[REWARD]["mean"] < found.over_em["policy"]["mean"]:
            cure = "it is as good as the reward lets it be."
        warned.append(f"{text}, by {by:.2g} nats each: {cure}")
    if not found.effective_share >= FEW_EFFECTIVE:
        warned.append(
            "the reward's normaliser rests on few draws: its held-out likelihood is a rough one."
        )
    if found.rows > 1 and np.isnan(found.over_em[REWARD]["standard_error"]):
        warned.append(
            "all held-out demonstrations are of one group: what is said of them may be true of it "
            "alone. Hold out more (--held-out), or fit with several seeds."
        )
    return warned


def _lack(found: Score, name: str) -> float:
    """By how many nats a density is behind EM; 0 if that is little or not clear. Paired differences
    of like densities scatter little, so that the least lack is soon clear.
    """
    by = -found.over_em[name]["mean"]
    worth = by >= LEAST_LACK or found.missed.get(name, 0) > 0
    return by if worth and found.behind_em(name) else 0.0
