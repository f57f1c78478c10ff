"""Where the head starts, against plain numpy, scipy's optimizer and known variances."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.features import Encoder
from extremax.heads import LinearHead
from extremax.kernels.cpu.threads import limit
from extremax.labels import ClassLabels, LabelIndex
from extremax.model import Model
from extremax.noise import NOISES, FrequencyNoise, Noise, TreeNoise, UniformNoise
from extremax.objectives import NCE, OBJECTIVES, ExactSoftmax, NegativeSampling, Objective, Pairs
from extremax.prediction import Blend
from extremax.random import Purpose, Stream
from extremax.rows import DenseRows
from extremax.training import start
from extremax.training.data import Examples
from extremax.training.holdout import holdout
from extremax.training.start import Start, start_at_class_means

N_CLASSES, N_EMPTY = 60, 4
X, Y = clustered(2500, N_CLASSES - N_EMPTY, 10, seed=2, noise=0.4)
X += np.float32(0.7)  # The mean of all is not zero.
TRAIN, HELD_OUT = holdout(Y, 0.2, seed=1)
NOTHING = np.zeros(0, np.int64)
# Noises that follow the head wait for it, see the tests of objectives below.
FIXED = [name for name in sorted(NOISES) if not NOISES[name]().follows_head]
every_noise = pytest.mark.parametrize("name", FIXED)


def started(
    noise: Noise,
    features: np.ndarray = X,
    labels: np.ndarray = Y,
    n_classes: int = N_CLASSES,
    rows: np.ndarray = TRAIN,
    held_out: np.ndarray = HELD_OUT,
    n_negatives: int = 3,
    objective: Objective | None = None,
    weights: np.ndarray | None = None,
) -> Model:
    noise.fit(features, labels, n_classes, rows)
    model = new_model(noise, features, n_classes, objective or NegativeSampling())
    examples = Examples(DenseRows(features), labels, weights)
    examples.keep_context(noise)
    start_at_class_means(Start(model, examples, rows, held_out, n_negatives, 5))
    return model


@cache
def default_start(name: str) -> Model:
    """The start with a noise as it comes; not to be changed."""
    return started(NOISES[name]())


def new_model(noise: Noise, features: np.ndarray, n_classes: int, objective: Objective) -> Model:
    scale = DenseRows(features).unit_scale()
    head = LinearHead(n_classes, features.shape[1], 1.0, scale)
    labels = ClassLabels(LabelIndex(np.arange(n_classes)))
    blend = Blend.start(objective, noise) if objective.adds_log_q else Blend()
    return Model(Encoder(), labels, head, noise, objective, blend)


def linear(model: Model) -> LinearHead:
    assert isinstance(model.head, LinearHead)
    return model.head


def scores_of(model: Model, features: np.ndarray) -> torch.Tensor:
    return model.head.scores_all(DenseRows(features))


def log_probs(model: Model, features: np.ndarray, labels: np.ndarray) -> torch.Tensor:
    """log p of the label of each row."""
    return model.log_probs(DenseRows(features), labels[:, None], 2**29)[:, 0]


def anova(x: np.ndarray, y: np.ndarray) -> float:
    """κ from the two mean squares of a one-way table, summed over dimensions."""
    groups = [x[y == c] for c in np.unique(y)]
    sizes = np.array([len(group) for group in groups])
    n, c = len(x), len(groups)
    within = sum(((g - g.mean(0)) ** 2).sum() for g in groups) / (n - c)
    center = x.mean(0)
    among = sum(len(g) * ((g.mean(0) - center) ** 2).sum() for g in groups) / (c - 1)
    typical = (n - (sizes**2).sum() / n) / (c - 1)
    return within / ((among - within) / typical)


def plain_head(x: np.ndarray, y: np.ndarray, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights and biases of f, class by class."""
    kappa, m = anova(x, y), x.mean(0)
    weight, bias = np.zeros((n_classes, x.shape[1])), np.zeros(n_classes)
    for c in range(n_classes):
        own = x[y == c]
        if len(own):
            mean = m + len(own) / (len(own) + kappa) * (own.mean(0) - m)
            weight[c] = mean - m
            bias[c] = -0.5 * (mean @ mean - m @ m)
    return weight, bias


def scale_of(model: Model) -> tuple[float, float, np.ndarray, np.ndarray]:
    """τ and c as they are in the head, with the plain f that they were applied to."""
    weight, bias = plain_head(X[TRAIN].astype(np.float64) * model.head.scale, Y[TRAIN], N_CLASSES)
    tau = float((model.head.weight.numpy() * weight).sum() / (weight**2).sum())
    return tau, float(model.head.bias[-1]), weight, bias


@every_noise
def test_the_head_is_the_plain_discriminant_scaled_and_shifted(name: str) -> None:
    model = default_start(name)
    tau, c, weight, bias = scale_of(model)
    assert tau > 0.05
    np.testing.assert_allclose(model.head.weight, tau * weight, atol=2e-5 * tau)
    np.testing.assert_allclose(model.head.bias, tau * bias + c, atol=1e-4 * tau)
    # Adagrad has not stepped yet.
    assert (model.head.classes.weight_acc == 1.0).all()
    assert (model.head.classes.bias_acc == 1.0).all()


def test_blocks_of_rows_and_classes_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = started(UniformNoise()).head
    monkeypatch.setattr(start, "_BLOCK", 17)
    monkeypatch.setattr(start, "_BLOCK_BYTES", 4 * 10 * 13)
    parts = started(UniformNoise()).head
    torch.testing.assert_close(parts.weight, whole.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(parts.bias, whole.bias, rtol=1e-4, atol=1e-5)


def plain_pairs(model: Model, n_negatives: int, leave_out: bool) -> tuple[Pairs, torch.Tensor]:
    """f and log q of truth and negatives on every training row, pair by pair; classes."""
    x, y = X.astype(np.float64) * model.head.scale, Y
    kappa, m = anova(x[TRAIN], y[TRAIN]), x[TRAIN].mean(0)
    context, truth = model.noise.context(X)[TRAIN], torch.from_numpy(y[TRAIN])[:, None]
    draw = model.noise.sample(context, n_negatives, Stream.of(5, Purpose.START, rows=TRAIN))
    classes = torch.cat([truth, draw.labels], 1)
    members = [TRAIN[y[TRAIN] == c] for c in range(N_CLASSES)]
    f = np.zeros(classes.shape)
    for i, row in enumerate(TRAIN):
        for j, c in enumerate(classes[i].tolist()):
            others = members[c]
            if leave_out:
                others = others[others != row]
            if len(others):
                away = len(others) / (len(others) + kappa) * (x[others].mean(0) - m)
                mean = m + away
                f[i, j] = away @ x[row] - 0.5 * (mean @ mean - m @ m)
    log_q = torch.cat([model.noise.log_prob(context, truth), draw.log_q], 1)
    hits = draw.labels == truth
    return Pairs(torch.from_numpy(f), log_q.double(), hits, torch.empty(len(f), 0)), classes


def best_by_scipy(
    objective: Objective, pairs: Pairs, prior: torch.Tensor
) -> tuple[np.ndarray, Any]:
    def loss(theta: np.ndarray) -> float:
        scores = theta[0] * pairs.scores + prior + theta[1]
        return float(objective.loss(pairs._replace(scores=scores)).mean())

    found = optimize.minimize(
        loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12}
    )
    assert found.success
    return found.x, loss


@every_noise
@pytest.mark.parametrize("regularization", [0.0, 1e-2])
def test_tau_and_c_minimize_the_objective(name: str, regularization: float) -> None:
    objective = NegativeSampling(regularization)
    model = started(NOISES[name](), objective=objective)
    tau, c, _, _ = scale_of(model)
    prior = torch.zeros(())
    best, loss = best_by_scipy(objective, plain_pairs(model, 3, leave_out=True)[0], prior)
    if best[0] < 0.0:
        # Class means that speak against their classes are no start.
        assert tau == c == 0.0
        return
    np.testing.assert_allclose([tau, c], best, rtol=5e-4, atol=5e-4)
    assert loss(np.array([tau, c])) < loss(best) + 1e-8
    # An example that votes for its own class makes every class look surer than it is: with it
    # the optimum would be elsewhere, by far more than the tolerance above.
    flattered, _ = best_by_scipy(objective, plain_pairs(model, 3, leave_out=False)[0], prior)
    assert flattered[0] > 1.01 * tau


def log_share() -> torch.Tensor:
    counts = np.maximum(np.bincount(Y[TRAIN], minlength=N_CLASSES), 0.5)
    return torch.from_numpy(np.log(counts / counts.sum()))


def test_scores_that_are_to_be_log_p_start_with_the_log_frequency() -> None:
    # c must be right too: scores of noise-contrastive estimation normalize themselves.
    model = started(UniformNoise(), objective=NCE(regularization=1e-3))
    tau, _, weight, bias = scale_of(model)
    np.testing.assert_allclose(model.head.weight, tau * weight, atol=2e-5 * tau)
    offset = model.head.bias.double().numpy() - tau * bias - log_share().numpy()
    np.testing.assert_allclose(offset, offset.mean(), atol=1e-4 * max(tau, 1.0))
    pairs, classes = plain_pairs(model, 3, leave_out=True)
    best, _ = best_by_scipy(NCE(regularization=1e-3), pairs, log_share()[classes])
    np.testing.assert_allclose([tau, offset.mean()], best, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_every_objective_starts_ahead_of_class_frequencies(objective: str) -> None:
    model = started(UniformNoise(), objective=OBJECTIVES[objective]())
    assert model.head.weight.isfinite().all()
    assert model.head.bias.isfinite().all()
    frequencies = float(log_share()[torch.from_numpy(Y[HELD_OUT])].mean())
    assert held_out_likelihood(model) > frequencies + 0.5


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_frequencies_are_predicted_where_features_say_nothing(objective: str) -> None:
    # Features are noise: τ is next to nothing, and what remains are class frequencies.
    features = np.random.default_rng(0).standard_normal(X.shape).astype(np.float32)
    model = started(FrequencyNoise(), features, objective=OBJECTIVES[objective]())
    likelihood = log_probs(model, features[HELD_OUT], Y[HELD_OUT]).double().mean()
    frequencies = float(log_share()[torch.from_numpy(Y[HELD_OUT])].mean())
    assert float(likelihood) > frequencies - 0.1


@pytest.mark.parametrize("name", sorted(set(NOISES) - set(FIXED)))
def test_a_noise_that_waits_for_the_head_is_replaced_by_a_uniform_one(name: str) -> None:
    expected = started(UniformNoise(), objective=NCE()).head
    noise = NOISES[name]().fit(X, Y, N_CLASSES, TRAIN)
    model = new_model(noise, X, N_CLASSES, NCE())
    start_at_class_means(Start(model, Examples(DenseRows(X), Y), TRAIN, HELD_OUT, 3, 5))
    assert torch.equal(model.head.weight, expected.weight)
    assert torch.equal(model.head.bias, expected.bias)


def test_exact_softmax_starts_without_asking_its_noise() -> None:
    expected = started(UniformNoise(), objective=ExactSoftmax()).head
    head = started(TreeNoise(2), objective=ExactSoftmax()).head
    assert torch.equal(head.weight, expected.weight)
    assert torch.equal(head.bias, expected.bias)


@pytest.mark.parametrize(("within", "between"), [(4.0, 0.5), (1.0, 1.0), (0.3, 3.0)])
def test_kappa_is_the_ratio_of_known_variances(within: float, between: float) -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 12, 4000)
    y = np.repeat(np.arange(4000), counts)
    means = 2.0 + np.sqrt(between) * rng.standard_normal((4000, 6))
    x = means[y] + np.sqrt(within) * rng.standard_normal((len(y), 6))
    sums = np.zeros((4000, 6), np.float32)
    np.add.at(sums, y, x)
    kappa = start._shrinkage(sums, counts, x.mean(0), float((x**2).sum()))
    assert kappa == pytest.approx(within / between, rel=0.05)
    assert kappa == pytest.approx(anova(x, y), rel=1e-4)


def test_kappa_at_its_ends() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 30, 600)
    for x, end in (
        (rng.standard_normal((30, 4))[y], 1e-3),  # Rows of a class are all alike.
        (np.tile([[1.0], [-1.0]], (300, 1)), 1e3),  # Classes are.
    ):
        labels = y if end < 1 else np.repeat(np.arange(300), 2)
        counts = np.bincount(labels)
        sums = np.zeros((len(counts), x.shape[1]), np.float32)
        np.add.at(sums, labels, x)
        assert start._shrinkage(sums, counts, x.mean(0), float((x**2).sum())) == end


@every_noise
def test_bits_do_not_depend_on_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # float32 weights hide most of a difference in τ and c: look at these as well.
    scales: list[tuple[float, float]] = []
    best_scale = start._best_scale

    def noted(*args: Any) -> tuple[float, float]:
        scales.append(best_scale(*args))
        return scales[-1]

    monkeypatch.setattr(start, "_best_scale", noted)
    # Enough pairs for torch to spread a sum over its threads.
    features, labels = clustered(5000, 80, 12, seed=4, noise=0.4)
    train, held_out = holdout(labels, 0.1, seed=0)
    parts = features, labels, 80, train, held_out
    results = []
    for n_threads in (1, 2, 3):
        scales.clear()
        with limit(n_threads):
            model = started(NOISES[name](), *parts, n_negatives=9)
        sharpness = getattr(model.noise, "sharpness_", None)
        results.append((model.head.state(), sharpness, scales.copy()))
    for state, *rest in results[1:]:
        assert rest == list(results[0][1:])
        for key, tensor in state.items():
            assert torch.equal(tensor, results[0][0][key]), key


@every_noise
def test_classes_without_examples_start_at_the_mean_of_all(name: str) -> None:
    head = default_start(name).head
    assert (head.weight[-N_EMPTY:] == 0).all()
    assert len(head.bias[-N_EMPTY:].unique()) == 1
    assert head.weight.isfinite().all()
    assert head.bias.isfinite().all()


@every_noise
@pytest.mark.parametrize("n", [1, 2, 300])
def test_one_class(name: str, n: int) -> None:
    labels = np.zeros(n, np.int64)
    model = started(NOISES[name](), X[:n], labels, 1, np.arange(n), NOTHING)
    assert model.head.weight.isfinite().all()
    assert model.head.bias.isfinite().all()
    # Truth and negatives are the same class: nothing to say.
    scores = scores_of(model, X[:n])
    torch.testing.assert_close(scores, torch.zeros(n, 1), rtol=0, atol=1e-3)


@every_noise
def test_one_example_per_class_says_nothing(name: str) -> None:
    labels = np.arange(40)
    model = started(NOISES[name](), X[:40], labels, 40, labels, NOTHING)
    assert model.head.weight.isfinite().all()
    # Left out of its own class, an example has none: no discriminant can help it.
    assert log_probs(model, X[:40], labels).isfinite().all()


@every_noise
@pytest.mark.parametrize("kind", ["float64", "memmap", "float64 memmap", "by columns", "strided"])
def test_features_of_any_kind(name: str, kind: str, tmp_path: Path) -> None:
    features: np.ndarray = X
    if "float64" in kind:
        features = features.astype(np.float64)
    if "memmap" in kind:
        np.save(tmp_path / "x.npy", features)
        features = np.load(tmp_path / "x.npy", mmap_mode="r")
    if kind == "by columns":
        features = np.asfortranarray(features)
    if kind == "strided":
        features = np.repeat(features, 2, axis=1)[:, ::2]
    plain, other = default_start(name), started(NOISES[name](), features)
    torch.testing.assert_close(other.head.weight, plain.head.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other.head.bias, plain.head.bias, rtol=1e-4, atol=1e-5)


# Bigram noise reads the number of a context in a column: there the scale is everything.
@pytest.mark.parametrize("name", [name for name in FIXED if name != "bigram"])
@pytest.mark.parametrize("factor", [1e-4, 1e4])
def test_the_scale_of_features_does_not_matter(name: str, factor: float) -> None:
    scaled = X * np.float32(factor)
    plain, other = default_start(name), started(NOISES[name](), scaled)
    torch.testing.assert_close(scores_of(other, scaled), scores_of(plain, X), rtol=5e-3, atol=5e-3)
    assert getattr(other.noise, "sharpness_", None) == getattr(plain.noise, "sharpness_", None)


def test_only_the_rows_given_count() -> None:
    features, labels = X.copy(), Y.copy()
    others = np.setdiff1d(np.arange(len(Y)), TRAIN)
    features[others], labels[others] = 9.0, 0
    states = []
    for x, y in ((X, Y), (features, labels)):
        noise = FrequencyNoise().fit(x, y, N_CLASSES, TRAIN)
        model = new_model(noise, x, N_CLASSES, NegativeSampling())
        model.head = LinearHead(N_CLASSES, 10, 1.0, scale=1.3)
        start_at_class_means(Start(model, Examples(DenseRows(x), y), TRAIN, NOTHING, 3, 5))
        states.append(model.head.state())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_weights_of_examples_play_no_part() -> None:
    weights = np.random.default_rng(0).random(len(Y)).astype(np.float32)
    plain, weighted = started(UniformNoise()).head, started(UniformNoise(), weights=weights).head
    assert torch.equal(plain.weight, weighted.weight)
    assert torch.equal(plain.bias, weighted.bias)


def held_out_likelihood(
    model: Model, rows: np.ndarray = HELD_OUT, sharpness: float | None = None
) -> float:
    """Mean log p of rows; with a sharpness, of a zero head over such a noise."""
    if sharpness is not None:
        model = new_model(copy.copy(model.noise), X, N_CLASSES, model.objective)
        if model.noise.sharpnesses():
            model.noise.temper(sharpness)
    return float(log_probs(model, X[rows], Y[rows]).double().mean())


# A tree of all ten components knows nearly all there is; one of two leaves much to say.
@pytest.mark.parametrize(
    ("noise", "gain"),
    [*((NOISES[name](), 0.0) for name in FIXED), (TreeNoise(2), 0.2)],
)
def test_the_start_knows_more_of_unseen_rows_than_a_zero_head(noise: Noise, gain: float) -> None:
    watched, unseen = HELD_OUT[::2], HELD_OUT[1::2]
    model = started(noise, held_out=watched)
    zero = [
        held_out_likelihood(model, unseen, sharpness)
        for sharpness in model.noise.sharpnesses() or (1.0,)
    ]
    assert held_out_likelihood(model, unseen) > max(zero) + gain


@every_noise
def test_without_held_out_rows_it_knows_more_than_its_noise(name: str) -> None:
    model = started(NOISES[name](), held_out=NOTHING)
    same = getattr(model.noise, "sharpness_", 1.0)
    zero = held_out_likelihood(model, sharpness=same)
    # A noise that is a classifier by itself leaves little to say.
    assert held_out_likelihood(model) > zero + (0.0 if model.noise.is_classifier else 0.2)


class Plain(NegativeSampling):
    """An objective whose scores are logits already."""

    adds_log_q = False


class TestSharpness:
    @pytest.mark.parametrize("components", [1, 3, 10])
    def test_it_is_the_likeliest_on_held_out_rows(self, components: int) -> None:
        model = started(TreeNoise(components))
        alone = {
            sharpness: held_out_likelihood(started(TreeNoise(components, sharpness=sharpness)))
            for sharpness in model.noise.sharpnesses()
        }
        assert model.noise.sharpness_ == max(alone, key=lambda s: alone[s])
        assert max(alone.values()) - min(alone.values()) > 0.02  # Or there was no choice.
        same = started(TreeNoise(components, sharpness=model.noise.sharpness_))
        assert same.noise.sharpness_ == model.noise.sharpness_
        assert torch.equal(same.head.weight, model.head.weight)
        assert torch.equal(same.head.bias, model.head.bias)

    def test_a_tree_that_is_wrong_is_made_soft(self) -> None:
        # Components tell little of many classes, and the tree takes them for the whole truth.
        features, labels = clustered(6000, 500, 30, seed=0, noise=0.1, exponent=0.0)
        train, held_out = holdout(labels, 0.2, seed=0)
        parts = features, labels, 500, train, held_out
        assert started(TreeNoise(2), *parts).noise.sharpness_ < 0.5

    def test_a_tree_that_knows_all_there_is_stays_sharp(self) -> None:
        # Eight corners of a cube, which three straight cuts tell apart.
        rng = np.random.default_rng(0)
        corners = rng.choice([-1.0, 1.0], (5000, 3))
        features = corners + 0.3 * rng.standard_normal((5000, 3))
        labels = ((corners > 0) @ [4, 2, 1]).astype(np.int64)
        features = features.astype(np.float32)
        train, held_out = holdout(labels, 0.2, seed=0)
        soft = started(TreeNoise(3), features, labels, 8, train, held_out).noise.sharpness_
        assert soft >= 0.5

    @pytest.mark.parametrize("objective", [NegativeSampling(), Plain()])
    def test_without_a_measure_it_is_the_middle(self, objective: NegativeSampling) -> None:
        held_out = HELD_OUT if isinstance(objective, Plain) else NOTHING
        model = started(TreeNoise(4), held_out=held_out, objective=objective)
        offered = sorted(model.noise.sharpnesses())
        assert model.noise.sharpness_ in offered[1:-1]
        assert model.noise.sharpness_ == model.noise.sharpnesses()[len(offered) // 2]

    def test_a_number_given_is_kept(self) -> None:
        assert started(TreeNoise(4, sharpness=0.9)).noise.sharpness_ == 0.9

    def test_many_held_out_rows_go_by_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = started(TreeNoise(3)).noise.sharpness_
        monkeypatch.setattr(start, "HELD_OUT_BYTES", 1)
        assert started(TreeNoise(3)).noise.sharpness_ == whole


class TestClassifier:
    def model(self, **parameters: Any) -> ExtremeClassifier:
        return ExtremeClassifier(
            **{"epochs": 1, "n_negatives": 5, "n_jobs": 1, "random_state": 0} | parameters
        )

    def test_a_fit_chooses_a_sharpness_and_files_keep_it(self, tmp_path: Path) -> None:
        model = self.model(noise=TreeNoise(2)).fit(X, Y)
        assert not hasattr(model.noise, "sharpness_")  # The caller's noise is not fitted.
        assert model.model_.noise.sharpness_ in model.model_.noise.sharpnesses()
        model.save(tmp_path / "model")
        loaded = ExtremeClassifier.load(tmp_path / "model")
        assert loaded.model_.noise.sharpness_ == model.model_.noise.sharpness_
        np.testing.assert_array_equal(
            loaded.predict_log_proba(X[:9]), model.predict_log_proba(X[:9])
        )

    @every_noise
    def test_training_continues_from_the_start(self, name: str) -> None:
        # With next to no learning, a model is where it started, and that is no blank head.
        still = self.model(noise=name, learning_rate=1e-9).fit(X, Y)
        assert still.log_likelihood(X, Y) > -np.log(N_CLASSES) + 1.0
        assert float(still.model_.head.weight.abs().max()) > 0.1

    def test_only_the_first_partial_fit_starts(self) -> None:
        model = self.model(learning_rate=1e-9).partial_fit(X[:1500], Y[:1500])
        first = model.model_.head.weight.clone(), model.model_.noise.sharpness_
        assert float(first[0].abs().max()) > 0.1
        model.partial_fit(X[1500:], Y[1500:])
        torch.testing.assert_close(
            model.model_.head.weight[: len(first[0])], first[0], atol=1e-6, rtol=0
        )
        assert model.model_.noise.sharpness_ == first[1] == model.model_.noise.sharpnesses()[3]
