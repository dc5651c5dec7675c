import dataclasses

from virl_tf.discriminator import fit as discriminator_fit
from virl_tf.discriminator.fit import (
    Classes,
    DiscriminatorFitter,
    LogitData,
    _loss_and_accuracy,
    borrowed_fitter,
    chance_loss,
    weighted_cross_entropy,
)
from virl_tf.discriminator.network import pays_to_fuse
from virl_tf.hparams import default_hparams, own_data_hparams, rows_per_batch
from virl_tf.splitting import split

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import multivariate_normal

from tests import tiny
from tests.reference import cross_entropy as reference

EXPERT = multivariate_normal([0.5, 0.0], [[1.0, 0.3], [0.3, 0.5]])
MODEL = multivariate_normal([-0.5, 0.3], [[1.2, 0.0], [0.0, 0.8]])
PROPOSAL = multivariate_normal([0.0, 0.0], [[3.0, 0.0], [0.0, 3.0]])


def data(z, offsets=None, weights=None):
    n = len(z)
    arrays = (
        z,
        np.zeros(n) if offsets is None else offsets,
        np.ones(n) if weights is None else weights,
    )
    return LogitData(*(np.asarray(a, np.float32) for a in arrays))


def make_fitter(**training):
    return DiscriminatorFitter(2, tiny.hparams(training=training))


def split_classes(experts, samples, fraction=0.1):
    """(train, held out) of both classes."""
    parts = [split(data, fraction) for data in (experts, samples)]
    held_out, train = (Classes(*part) for part in zip(*parts, strict=True))
    return train, held_out


def fit(fitter, experts, samples, previous=(), seed=0, iteration=0):
    """phi, its weights and how it went, with a tenth of both classes held out."""
    return fitter.fit(*split_classes(experts, samples), previous, seed, iteration)


def same(first, second):
    """Whether two results of a fit are identical, arrays and numbers."""
    arrays = [
        [*weights, *(np.asarray(a) for a in phi), *info] for phi, weights, info in (first, second)
    ]
    return all(np.array_equal(a, b) for a, b in zip(*arrays, strict=True))


# --- the loss -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
def test_loss_equals_the_definition(scale):
    rng = np.random.default_rng(0)
    expert, sample, weights = (
        scale * rng.normal(size=7),
        scale * rng.normal(size=11),
        rng.uniform(0.0, 3.0, 11),
    )
    assert float(weighted_cross_entropy(expert, sample, weights)) == pytest.approx(
        reference.weighted_cross_entropy(expert, sample, weights), rel=1e-12
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_loss_is_exact_at_extreme_logits(dtype):
    right = weighted_cross_entropy(
        np.array([1e4], dtype), np.array([-1e4], dtype), np.ones(1, dtype)
    )
    wrong = weighted_cross_entropy(
        np.array([-1e4, 1e4], dtype), np.array([1e4, -1e4], dtype), np.array([0.5, 1.5], dtype)
    )
    assert float(right) == 0.0
    assert float(wrong) == pytest.approx(0.5 * 1e4 + 0.5 * 0.5 * 1e4)


# --- what the logits converge to ------------------------------------------------------------------


@pytest.fixture(scope="module")
def ratio_fit():
    """phi trained on experts against weighted draws of a proposal that stand for draws of MODEL."""
    settings = tiny.hparams(
        network={"layer_size": 32},
        training={"num_epochs": 40, "batch_size": 100, "warm_up_epochs": 5, "patience": None},
    )
    experts = EXPERT.rvs(6000, random_state=0)
    negatives = PROPOSAL.rvs(12000, random_state=1)
    weights = np.exp(MODEL.logpdf(negatives) - PROPOSAL.logpdf(negatives))
    fitter = DiscriminatorFitter(2, settings)
    network, _, info = fit(fitter, data(experts), data(negatives, None, weights))
    return network, info


def test_logits_recover_the_log_density_ratio(ratio_fit):
    network, _ = ratio_fit
    x = np.concatenate([EXPERT.rvs(1000, random_state=2), MODEL.rvs(1000, random_state=3)])
    logits = network.logits(x.astype(np.float32)).numpy()
    truth = EXPERT.logpdf(x) - MODEL.logpdf(x)
    assert np.corrcoef(logits, truth)[0, 1] > 0.97
    assert np.mean(np.abs(logits - truth)) < 0.2
    # Not the ratio to the proposal, which an unweighted loss would give.
    assert np.mean(np.abs(logits - (EXPERT.logpdf(x) - PROPOSAL.logpdf(x)))) > 0.5


def test_loss_after_training_is_near_the_best_possible(ratio_fit):
    _, info = ratio_fit
    x, y = EXPERT.rvs(20000, random_state=4), MODEL.rvs(20000, random_state=5)
    best = float(
        weighted_cross_entropy(
            EXPERT.logpdf(x) - MODEL.logpdf(x), EXPERT.logpdf(y) - MODEL.logpdf(y), np.ones(20000)
        )
    )
    assert abs(info.validation_loss - best) < 0.1
    assert abs(info.train_loss - best) < 0.1
    assert 0.5 < info.accuracy < 1.0
    assert info.epochs == 40


def test_offsets_are_added_to_the_network():
    # Equal classes, so that the best logit is 0 and the network must become minus the offset.
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 600, 2))
    fitter = make_fitter(num_epochs=60, warm_up_epochs=1, batch_size=25)
    network, _, info = fit(fitter, data(x, 1.0 + x[:, 0]), data(y, 1.0 + y[:, 0]))
    found = network.logits(x.astype(np.float32)).numpy()
    assert np.mean(np.abs(found + 1.0 + x[:, 0])) < 0.25
    assert np.corrcoef(found, -x[:, 0])[0, 1] > 0.97
    assert info.validation_loss == pytest.approx(2.0 * np.log(2.0), abs=0.05)


# --- a fit is a function of its arguments ---------------------------------------------------------


def separable(num_experts=80, num_samples=120, seed=0):
    rng = np.random.default_rng(seed)
    experts, samples = (
        rng.normal(size=(num_experts, 2)) + 2.0,
        rng.normal(size=(num_samples, 2)) - 2.0,
    )
    return data(experts), data(samples, None, rng.uniform(0.5, 1.5, num_samples))


PLAIN, FUSED = 0.2, 0.04  # rates of dropout: with the second XLA compiles the epoch


def full_fitter(dropout):
    """A fitter with every source of randomness and state: dropout, batch norm, Adam, shuffles."""
    settings = tiny.hparams(
        network={"dropout": dropout, "batch_norm": True}, training={"patience": None}
    )
    return DiscriminatorFitter(2, settings)


@pytest.fixture(scope="module", params=[PLAIN, FUSED])
def fitter(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discriminator_fit, "pays_to_fuse", pays_to_fuse)  # as users have it
        return full_fitter(request.param)


def test_xla_compiles_where_it_pays():
    def of(**network):
        return pays_to_fuse(tiny.hparams(network=network).network)

    assert of(dropout=FUSED)
    assert of(batch_norm=True)
    assert not of()
    assert not of(dropout=PLAIN, batch_norm=True)


def test_a_step_that_xla_compiled_is_the_same_step():
    # Without dropout: XLA draws other random numbers. Without the biases before batch norm: their
    # gradients are rounding errors, which Adam makes steps of.
    settings = tiny.hparams(network={"batch_norm": True})
    batches, weights = separable(50, 50), []
    for fused in (False, True):
        fitter = DiscriminatorFitter(2, settings)
        fitter._reset((), 0, 0)
        step = tf.function(fitter._train_step, autograph=False, jit_compile=fused)
        loss = float(step(*batches))
        kept = [v for v in fitter.model.weights if v.name != "bias"]
        weights.append([loss, *map(np.array, kept)])
    for plain, fused in zip(*weights, strict=True):
        np.testing.assert_allclose(plain, fused, rtol=1e-4, atol=1e-5)


def test_a_step_moves_every_trainable_weight():
    experts, samples = separable(50, 50)
    fitter = make_fitter()
    fitter._reset((), 0, 0)
    before = [variable.numpy() for variable in fitter.model.trainable_variables]
    fitter._train_step(experts, samples)
    for variable, start in zip(fitter.model.trainable_variables, before, strict=True):
        assert (variable.numpy() != start).any()


def test_adam_has_the_learning_rate_that_is_asked_for():
    fitter = make_fitter(learning_rate=2e-4)
    assert float(fitter.optimizer.learning_rate) == pytest.approx(2e-4)


def test_fits_depend_on_their_arguments_only(fitter):
    experts, samples = separable()
    first = fit(fitter, experts, samples)
    others = [
        fit(fitter, experts, samples, seed=1),
        fit(fitter, experts, samples, iteration=1),
        fit(fitter, experts, samples, previous=first[1]),
    ]
    again = fit(fitter, experts, samples)
    assert same(first, again)
    assert not any(np.array_equal(first[1][0], other[1][0]) for other in others)


@pytest.mark.parametrize("fitter", [PLAIN], indirect=True)
def test_another_fitter_gives_the_same_fit(fitter):
    experts, samples = separable()
    one, other = (fit(each, experts, samples) for each in (fitter, full_fitter(PLAIN)))
    assert same(one, other)


def test_a_fitter_is_lent_to_one_at_a_time_and_for_its_own_hyperparameters(monkeypatch):
    monkeypatch.setattr(discriminator_fit, "_IDLE", {})
    own = tiny.hparams()
    others = [
        (3, own),
        (2, tiny.hparams(training={"num_epochs": 9})),
        (2, tiny.hparams(network={"layer_size": 16})),
    ]
    with borrowed_fitter(2, own) as first, borrowed_fitter(2, own) as second:
        assert first is not second
    for given in others:
        with borrowed_fitter(*given) as other:
            assert other not in (first, second)
            assert other.hparams == given[1].training
    with borrowed_fitter(2, own) as again:
        assert again in (first, second)


def test_compiled_epoch_is_traced_once(fitter):
    before = fitter.num_traces
    for t, seed in enumerate([0, 3, 2**40]):
        experts, samples = separable(seed=seed)
        fit(fitter, experts, samples, fitter.model.get_weights() if t else (), seed, t)
    assert before == fitter.num_traces == 1


def test_frozen_network_and_weights_are_the_same_function(fitter):
    experts, samples = separable()
    network, weights, _ = fit(fitter, experts, samples)
    fitter.model.set_weights(weights)
    np.testing.assert_allclose(
        network.logits(experts.z),
        fitter.model(experts.z, training=False)[:, 0],
        rtol=1e-4,
        atol=1e-5,
    )


# --- stopping -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def overfitting():
    """Two small samples of one distribution: the held-out loss soon rises."""
    rng = np.random.default_rng(3)
    return make_fitter(batch_size=4), data(rng.normal(size=(40, 2))), data(rng.normal(size=(40, 2)))


def fit_with(overfitting, **training):
    fitter, experts, samples = overfitting
    fitter.hparams = dataclasses.replace(fitter.hparams, **training)
    return fit(fitter, experts, samples)


NUM_EPOCHS = 15


@pytest.fixture(scope="module")
def losses(overfitting):
    """The held-out loss after each epoch: a warm-up as long as the fit keeps the last epoch's
    weights.
    """
    fits = [
        fit_with(overfitting, num_epochs=n, warm_up_epochs=n, patience=None)[2]
        for n in range(1, NUM_EPOCHS + 1)
    ]
    assert [info.best_epoch for info in fits] == list(range(NUM_EPOCHS))
    return np.array([info.validation_loss for info in fits])


def test_best_weights_are_restored(overfitting, losses):
    best = int(np.argmin(losses))
    assert best < NUM_EPOCHS - 1, "the data should overfit, else this test shows nothing"
    network, weights, info = fit_with(
        overfitting, num_epochs=NUM_EPOCHS, warm_up_epochs=1, patience=None
    )
    assert info.validation_loss == losses.min()
    assert (info.best_epoch, info.epochs) == (best, NUM_EPOCHS)

    # The loss that is reported is that of the weights that are returned, on what was held out.
    _, held_out = split_classes(*overfitting[1:])
    held = [network.logits(each.z).numpy() for each in held_out]
    assert float(weighted_cross_entropy(*held, np.ones(4))) == pytest.approx(
        info.validation_loss, rel=1e-5
    )
    until_best = fit_with(overfitting, num_epochs=best + 1, warm_up_epochs=best + 1, patience=None)
    until_best = until_best[1]
    for found, expected in zip(weights, until_best, strict=True):
        np.testing.assert_array_equal(found, expected)


def stop_after(losses, patience, warm_up):
    """Epochs until `patience` of them in a row brought nothing better; none counts before the
    warm-up's last.
    """
    best, waited = np.inf, 0
    for epoch, loss in enumerate(losses):
        if epoch + 1 < warm_up:
            continue
        best, waited = (loss, 0) if loss < best else (best, waited + 1)
        if waited == patience:
            return epoch + 1
    return len(losses)


@pytest.mark.parametrize("warm_up", [0, 1, 6])
@pytest.mark.parametrize("patience", [1, 3])
def test_patience_stops(overfitting, losses, patience, warm_up):
    info = fit_with(overfitting, num_epochs=NUM_EPOCHS, warm_up_epochs=warm_up, patience=patience)[
        2
    ]
    expected = stop_after(losses, patience, warm_up)
    assert expected < NUM_EPOCHS
    assert info.epochs == expected
    assert info.validation_loss == losses[max(0, warm_up - 1) : expected].min()


def test_patience_counts_from_the_best_epoch_also_if_it_ends_the_warm_up(overfitting, losses):
    best = int(np.argmin(losses))
    info = fit_with(overfitting, num_epochs=NUM_EPOCHS, warm_up_epochs=best + 1, patience=2)[2]
    assert (info.best_epoch, info.epochs) == (best, best + 3)


def test_long_warm_up_keeps_the_last_epoch(overfitting, losses):
    info = fit_with(overfitting, num_epochs=5, warm_up_epochs=50, patience=1)[2]
    assert (info.best_epoch, info.epochs) == (4, 5)
    assert info.validation_loss == losses[4]


# --- data of every size ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_experts", "num_samples"),
    [(100, 16), (20, 700), (5, 16)],
    ids=["fewer negatives", "many negatives", "below a batch"],
)
def test_unequal_numbers_of_points(num_experts, num_samples):
    fitter = make_fitter(num_epochs=150, batch_size=32, warm_up_epochs=100)
    network, weights, info = fit(fitter, *separable(num_experts, num_samples))
    assert all(np.isfinite(w).all() for w in weights)
    assert np.isfinite([info.train_loss, info.validation_loss]).all()
    experts, samples = separable(500, 500, seed=1)
    assert np.mean(network.logits(experts.z).numpy() > 0.0) > 0.9
    assert np.mean(network.logits(samples.z).numpy() < 0.0) > 0.9


def test_l2_shrinks_the_weights():
    def norm(l2):
        settings = tiny.hparams(
            network={"l2": l2}, training={"num_epochs": 40, "warm_up_epochs": 40}
        )
        _, weights, _ = fit(DiscriminatorFitter(2, settings), *separable())
        return sum(np.sum(np.square(w)) for w in weights if w.ndim == 2)

    assert norm(0.1) < 0.8 * norm(0.0)


# --- averages -------------------------------------------------------------------------------------


def test_the_weight_average_is_the_one_of_all_steps():
    experts, negatives, decay = *separable(), 0.7
    settings = {"num_epochs": 1, "warm_up_epochs": 0, "batch_size": 16}
    averaged = make_fitter(weight_average=decay, **settings)
    _, weights, _ = fit(averaged, experts, negatives)

    plain = make_fitter(**settings)
    steps, train_step = [], plain._train_step

    def recorded(*args):
        loss = train_step(*args)
        steps.append([variable.numpy() for variable in plain.model.trainable_variables])
        return loss

    plain._train_step = recorded
    plain._train_epoch = plain._epoch  # step by step, not compiled
    fit(plain, experts, negatives)
    expected = steps[0]
    for step in steps[1:]:
        expected = [
            decay * mean + (1.0 - decay) * value for mean, value in zip(expected, step, strict=True)
        ]
    assert len(steps) > 1
    for found, mean in zip(weights, expected, strict=True):
        np.testing.assert_allclose(found, mean, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{"training": {"weight_average": 0.7}}, {"network": {"dropout": PLAIN, "batch_norm": True}}],
    ids=["averaged", "with dropout and batch norm"],
)
def test_the_held_out_loss_is_that_of_the_network_as_it_predicts(settings):
    experts, negatives = separable()
    fitter = DiscriminatorFitter(2, tiny.hparams(**settings))
    network, _, info = fit(fitter, experts, negatives)
    _, held_out = split_classes(experts, negatives)
    logits = [network.logits(each.z).numpy() for each in held_out]
    expected = reference.weighted_cross_entropy(*logits, np.asarray(held_out.negatives.weights))
    assert info.validation_loss == pytest.approx(expected, rel=1e-4)


def test_the_accuracy_is_the_weighted_share_of_right_answers():
    expert, sample = tf.constant([1.0, -1.0, 2.0, 0.0]), tf.constant([-1.0, 0.0, 3.0])
    weights = tf.constant([0.5, 1.0, 2.0])
    _, accuracy = _loss_and_accuracy(expert, sample, weights)
    right = 2.0 / 4.0 + (0.5 + 1.0) / 3.0  # each class by its own number
    assert float(accuracy) == pytest.approx(right / (1.0 + (0.5 + 1.0 + 2.0) / 3.0))


@pytest.mark.parametrize("offset", [0.0, 2.0])
@pytest.mark.parametrize("mean", [0.2, 0.96, 1.0, 3.0])
def test_chance_is_the_best_constant(mean, offset):
    rng = np.random.default_rng(0)
    weights, expert, sample = (
        mean * rng.uniform(0.0, 2.0, 400),
        offset * rng.normal(size=3),
        offset * rng.normal(size=400),
    )
    losses = [
        reference.weighted_cross_entropy(c + expert, c + sample, weights)
        for c in np.linspace(-8.0, 8.0, 801)
    ]
    assert chance(expert, sample, weights) == pytest.approx(min(losses), abs=1e-4)
    if not offset:  # the closed form
        m = weights.mean()
        assert chance(expert, sample, weights) == pytest.approx(
            (1.0 + m) * np.log(1.0 + m) - m * np.log(m)
        )


def test_chance_without_any_weight_is_zero_and_stays_nan_where_a_weight_is():
    assert chance(np.zeros(3), np.zeros(5), np.zeros(5)) == pytest.approx(0.0, abs=1e-12)
    assert np.isnan(chance(np.zeros(3), np.zeros(2), np.array([1.0, np.nan])))


def chance(expert_offsets, sample_offsets, weights):
    """`chance_loss` of points that have no coordinates."""
    return chance_loss(
        LogitData(None, expert_offsets, None), LogitData(None, sample_offsets, weights)
    )


def test_weights_whose_mean_is_not_one_are_no_gain():
    # The same points in both classes: nothing can be told apart, whatever the held-out weights'
    # mean is.
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 3000, 2))
    weights = np.ones(3000)
    weights[::10] = 0.8  # those that are held out
    fitter = make_fitter(num_epochs=3, warm_up_epochs=1)
    _, _, info = fit(fitter, data(x), data(y, None, weights))
    assert info.validation_loss < 2.0 * np.log(2.0) - 0.05
    assert info.chance_loss - info.validation_loss < 0.01


# --- the size of a batch --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch_size", "n", "expected"),
    [
        (None, 7200, 500),
        (None, 100_000, 500),
        (None, 900, 64),
        (None, 13, 1),
        (250, 7200, 250),
        (250, 90, 90),
        (10**9, 5, 5),
    ],
)
def test_rows_per_batch(batch_size, n, expected):
    hparams = default_hparams().override({"training": {"batch_size": batch_size}}).training
    assert rows_per_batch(hparams, n) == expected


def test_the_default_batch_of_best_takes_many_steps_of_few_demonstrations():
    hparams = own_data_hparams("virl").training
    assert all(n // rows_per_batch(hparams, n) >= 14 for n in (14, 100, 270, 900, 7200, 10**6))


# --- the order of the points ----------------------------------------------------------------------


def test_every_epoch_of_every_iteration_has_an_order_of_its_own(monkeypatch):
    fitter, seeds = make_fitter(num_epochs=4), []

    def train_epoch(experts, samples, seed):
        seeds.append(tuple(seed.numpy()))
        return 0.0

    monkeypatch.setattr(fitter, "_train_epoch", train_epoch)
    points = data(np.zeros((20, 2)))
    for iteration in range(2):
        fit(fitter, points, points, iteration=iteration)
    assert len(set(seeds)) == len(seeds) == 8


def test_epochs_of_some_of_the_points_see_nearly_all_of_them():
    points = data(np.tile(np.arange(100.0)[:, None], 2))
    seen = set()
    for epoch in range(60):
        shuffled = discriminator_fit._shuffle(points, 10, tf.constant([epoch, 1]))
        seen.update(shuffled.z.numpy()[:, 0])
    assert len(seen) > 95  # 99.8 of 100 are expected


def test_the_classes_are_not_shuffled_alike(monkeypatch):
    fitter, orders = make_fitter(), []
    rows_of = discriminator_fit._shuffle

    def shuffle(points, n, seed):
        shuffled = rows_of(points, n, seed)
        orders.append(shuffled.z.numpy()[:, 0].tolist())
        return shuffled

    monkeypatch.setattr(discriminator_fit, "_shuffle", shuffle)
    monkeypatch.setattr(fitter, "_train_step", lambda *_: tf.constant(0.0))
    points = data(np.tile(np.arange(20.0)[:, None], 2))
    fitter._epoch(points, points, tf.constant([1, 2]))
    experts, samples = orders
    assert len(experts) == len(samples) > 10
    assert experts != samples


# --- averaged weights -----------------------------------------------------------------------------


def test_averaged_weights_come_with_the_moving_moments_of_batch_norm():
    training = {"weight_average": 0.5, "num_epochs": 1}
    hparams = tiny.hparams(training=training, network={"batch_norm": True})
    fitter = DiscriminatorFitter(2, hparams)
    points = data(np.random.default_rng(0).standard_normal((40, 2)) + 3.0)
    fit(fitter, points, points)
    kept, averaged = (
        [variable.numpy() for variable in model.non_trainable_variables]
        for model in (fitter.model, fitter.validated)
    )
    start = [np.zeros_like, np.ones_like] * (len(kept) // 2)  # mean and variance of each layer
    for found, of_average, like in zip(kept, averaged, start, strict=True):
        np.testing.assert_array_equal(found, of_average)
        assert (found != like(found)).any()
