"""Draws of a layer: their distribution, noises that follow the weight, and refitted trees."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch.nn.functional import linear

from extremax.nn import ExtremeSoftmax, RowAdagrad, RowAdam, inversion
from extremax.nn.device_draws import device_noise
from extremax.nn.following import WeightVectors
from extremax.noise import (
    NOISES,
    BigramNoise,
    FrequencyNoise,
    LogUniformNoise,
    MixtureNoise,
    QuadraticNoise,
    QuarticNoise,
    SoftmaxNoise,
    TreeNoise,
    UniformNoise,
)


def fitted(make_layer, make_batch, name, **settings):
    """A float32 layer whose noise is fitted to 2,000 examples, if it needs data."""
    layer = make_layer(noise=name, dtype=torch.float32, **settings)
    if not layer.proposals.fitted:
        features, _ = make_batch(2000, dtype=torch.float32)
        skewed = (40 * torch.rand(2000, generator=torch.Generator().manual_seed(1)) ** 2).long()
        layer.fit_noise(features.detach(), skewed)
    return layer


@pytest.mark.parametrize("name", NOISES)
def test_draws_follow_the_q_that_they_come_with(name, make_layer, make_batch, p_value):
    layer = fitted(make_layer, make_batch, name)
    one, target = make_batch(1, dtype=torch.float32)
    hidden, targets = one.detach().expand(4000, -1), target.expand(4000)
    weights = (layer.weight, layer.bias)
    drawn, log_q = layer.proposals.propose(hidden, targets, 7, False, *weights)
    every = layer.proposals.log_prob_all(hidden[:1], *weights)[0]
    torch.testing.assert_close(log_q[:, 0], every[targets], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(log_q[:, 1:], every[drawn], atol=1e-4, rtol=1e-4)
    assert p_value(drawn, every) > 1e-4


@pytest.mark.parametrize("name", NOISES)
def test_draws_of_other_classes_follow_the_q_that_they_come_with(
    name, make_layer, make_batch, p_value
):
    layer = fitted(make_layer, make_batch, name)
    one, _ = make_batch(1, dtype=torch.float32)
    hidden, weights = one.detach().expand(4000, -1), (layer.weight, layer.bias)
    every = layer.proposals.log_prob_all(hidden[:1], *weights)[0]
    # The class that would be hit most often.
    best = int(every.argmax())
    drawn, log_q = layer.proposals.propose(
        hidden, torch.full((4000,), best), 7, False, *weights, others=True
    )
    assert not bool((drawn == best).any())
    torch.testing.assert_close(log_q[:, 0], every[best].expand(4000), atol=1e-4, rtol=1e-4)
    noise, others = layer.proposals.active, torch.arange(40)[torch.arange(40) != best]
    context = noise.context(one.detach().numpy())
    expected = torch.full((40,), -torch.inf)
    expected[others] = noise.log_prob_others(context, torch.tensor([[best]]), others[None])[0]
    torch.testing.assert_close(expected.exp().sum(), torch.tensor(1.0), atol=1e-4, rtol=0)
    torch.testing.assert_close(log_q[:, 1:], expected[drawn], atol=1e-4, rtol=1e-4)
    # Counted without the target, whose probability is zero.
    assert p_value(torch.searchsorted(others, drawn), expected[others]) > 1e-4


@pytest.mark.parametrize("name", ["uniform", "frequency", "log_uniform"])
def test_shared_draws_follow_q_and_are_new_every_step(name, make_layer, make_batch, p_value):
    layer = fitted(make_layer, make_batch, name, shared=True)
    hidden, target = make_batch(5, dtype=torch.float32)
    every = layer.proposals.log_prob_all(hidden[:1], layer.weight, layer.bias)[0]
    all_drawn = []
    for _ in range(1000):
        drawn, log_q = layer.proposals.propose(hidden, target, 7, True, layer.weight, layer.bias)
        assert drawn.shape == (7,)
        assert log_q.shape == (5, 8)
        torch.testing.assert_close(log_q[:, 1:], every[drawn].expand(5, 7))
        all_drawn.append(drawn)
    assert p_value(torch.stack(all_drawn), every) > 1e-4


ON_DEVICE = {
    "uniform": UniformNoise(),
    "frequency": FrequencyNoise(power=0.75),
    "log_uniform": LogUniformNoise(),
    "bigram": BigramNoise(),
    "tree": TreeNoise(3, sharpness=0.7),
    "quadratic": QuadraticNoise(),
    "quartic": QuarticNoise(),
    "softmax": SoftmaxNoise(),
    "absolute softmax": SoftmaxNoise(absolute=True),
    "mixture": MixtureNoise((TreeNoise(3), "frequency", "quadratic"), (0.5, 0.2, 0.3)),
}


def skewed_rows(n_classes):
    generator = np.random.default_rng(0)
    labels = (n_classes * generator.random(500) ** 2).astype(np.int64)
    features = generator.normal(size=(500, 5)) + labels[:, None] / 20
    return features.astype(np.float32), labels


def both_forms(name, n_classes, features, labels):
    """A fitted noise, and its form for the device of a weight, here the CPU."""
    torch.manual_seed(0)
    noise = clone(ON_DEVICE[name]).fit(features, labels, n_classes)
    weight, bias = torch.randn(n_classes, 5), torch.randn(n_classes)
    if noise.follows_head:
        noise.attach(WeightVectors(weight, bias))
    return noise, device_noise(noise, weight, bias)


@pytest.mark.parametrize("n_classes", [1, 2, 37])
@pytest.mark.parametrize("name", ON_DEVICE)
def test_draws_on_the_device_follow_the_q_of_the_cpu(name, n_classes, monkeypatch, p_value):
    """The device is the CPU here, but the code is the one that runs on a GPU."""
    # Force several blocks of rows.
    monkeypatch.setattr(inversion, "_BLOCK_BYTES", 1 << 18)
    features, labels = skewed_rows(n_classes)
    noise, on_device = both_forms(name, n_classes, features, labels)
    rows = torch.from_numpy(features[:8])
    every = torch.arange(n_classes).expand(8, -1)
    expected = noise.log_prob_all(noise.context(features[:8])).expand(8, -1)
    torch.testing.assert_close(on_device.log_prob(rows, every), expected, atol=1e-4, rtol=1e-4)
    drawn = on_device.sample(rows[:1].expand(2000, -1), 10, torch.Generator().manual_seed(3))
    assert drawn.shape == (2000, 10)
    if n_classes > 1:
        assert p_value(drawn, expected[0]) > 1e-4


@pytest.mark.parametrize("n_classes", [2, 3, 37])
@pytest.mark.parametrize("name", ON_DEVICE)
def test_draws_of_other_classes_on_the_device_follow_the_q_of_the_cpu(
    name, n_classes, monkeypatch, p_value
):
    monkeypatch.setattr(inversion, "_BLOCK_BYTES", 1 << 18)
    features, labels = skewed_rows(n_classes)
    noise, on_device = both_forms(name, n_classes, features, labels)
    context, row = noise.context(features[:1]), torch.from_numpy(features[:1])
    # The first, the last and the most probable class.
    for y in {0, n_classes - 1, int(noise.log_prob_all(context)[0].argmax())}:
        others, label = torch.tensor([k for k in range(n_classes) if k != y]), torch.tensor([[y]])
        expected = noise.log_prob_others(context, label, others[None])
        found = on_device.log_prob_others(row, label, others[None])
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        drawn = on_device.sample_others(
            row.expand(2000, -1), label.expand(2000, 1), 10, torch.Generator().manual_seed(3)
        )
        assert drawn.shape == (2000, 10)
        assert not bool((drawn == y).any())
        if n_classes > 2:
            assert p_value(torch.searchsorted(others, drawn), found[0]) > 1e-4


def test_other_classes_are_drawn_on_the_device_also_where_q_of_the_target_rounds_to_one():
    features, labels = skewed_rows(9)
    for name in ("tree", "softmax"):
        _, on_device = both_forms(name, 9, features, labels)
        row = torch.from_numpy(features[:1])
        if name == "tree":
            on_device.nodes = 100 * on_device.nodes
        else:
            on_device.bias = torch.tensor([90.0] + 8 * [0.0])
        every = torch.arange(9)[None]
        log_q = on_device.log_prob(row, every)
        y = int(log_q.argmax())
        assert float(log_q[0, y].exp()) == 1.0
        others = every[every != y][None]
        found = on_device.log_prob_others(row, torch.tensor([[y]]), others)
        torch.testing.assert_close(found.exp().sum(), torch.tensor(1.0))
        drawn = on_device.sample_others(
            row.expand(500, -1), torch.full((500, 1), y), 4, torch.Generator().manual_seed(3)
        )
        assert not bool((drawn == y).any())
        shares = torch.bincount(drawn.reshape(-1), minlength=9)[others[0]] / 2000
        torch.testing.assert_close(shares, found[0].exp(), atol=0.05, rtol=0)


def test_what_cannot_be_drawn_on_the_device_stays_on_the_cpu():
    weight = torch.randn(4, 2)
    fourier = NOISES["fourier"]().fit(np.eye(4, 2), np.arange(4), 4)
    assert device_noise(fourier, weight, None) is None
    mixture = MixtureNoise(("uniform", "fourier")).fit(np.eye(4, 2), np.arange(4), 4)
    assert device_noise(mixture, weight, None) is None
    empty = BigramNoise().fit(np.empty((0, 1)), np.empty(0, np.int64), 4)
    assert device_noise(empty, weight, None) is None
    for late in (TreeNoise(2), BigramNoise()):
        late.fit(np.eye(4, 2), np.arange(4), 4)
        assert device_noise(late, weight, None) is not None
        late.extend(6)
        assert device_noise(late, weight, None) is None


def test_bigram_draws_on_the_device_read_contexts_as_on_the_cpu(p_value):
    """Contexts that were not seen, that are negative, and whose pairs were not all kept."""
    generator = np.random.default_rng(0)
    contexts = generator.integers(-3, 4, 3000)
    labels = (contexts**2 + 3 * generator.random(3000) ** 2).astype(np.int64)
    with pytest.warns(UserWarning, match="keeps 12 of"):
        noise = BigramNoise(backoff=40.0, max_pairs=12).fit(contexts[:, None], labels, 15)
    on_device = device_noise(noise, torch.zeros((15, 1)), None)
    rows = np.array([[-9], [-3], [0], [2], [99]])
    every = torch.arange(15).expand(5, -1)
    expected = noise.log_prob_all(noise.context(rows))
    found = on_device.log_prob(torch.from_numpy(rows), every)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for row, log_q in zip(rows, expected, strict=True):
        repeated = torch.from_numpy(row)[None].expand(3000, -1)
        drawn = on_device.sample(repeated, 10, torch.Generator().manual_seed(3))
        assert p_value(drawn, log_q) > 1e-4


@pytest.mark.parametrize(
    ("name", "shared"),
    [("uniform", False), ("uniform", True), ("tree", False), ("mixture", False),
     ("quadratic", False)],
)  # fmt: skip
def test_a_layer_uses_draws_of_its_device(
    name, shared, make_layer, make_batch, monkeypatch, p_value
):
    """As on a GPU: the layer proposes what the device form of its noise draws."""
    layer = fitted(make_layer, make_batch, name, shared=shared)
    weights = (layer.weight, layer.bias)
    on_device = device_noise(layer.proposals.active, *weights)
    monkeypatch.setattr(layer.proposals, "on_device", lambda *_: on_device)
    one, target = make_batch(1, dtype=torch.float32)
    hidden, targets = one.detach().expand(2000, -1), target.expand(2000)
    drawn, log_q = layer.proposals.propose(hidden, targets, 7, shared, *weights)
    every = on_device.log_prob(hidden[:1], torch.arange(layer.n_classes)[None])[0]
    assert drawn.shape == ((7,) if shared else (2000, 7))
    torch.testing.assert_close(log_q[:, 0], every[targets])
    torch.testing.assert_close(log_q[:, 1:], every[drawn].expand(2000, 7))
    if not shared:
        drawn, log_q = layer.proposals.propose(hidden, targets, 7, False, *weights, others=True)
        assert not bool((drawn == targets[:, None]).any())
        torch.testing.assert_close(log_q[:, 0], every[targets])
        expected = on_device.log_prob_others(hidden, targets[:, None], drawn)
        torch.testing.assert_close(log_q[:, 1:], expected)
    drawn, log_q = layer.proposals.propose(hidden, targets, 7, shared, *weights)
    again, _ = layer.proposals.propose(hidden, targets, 7, shared, *weights)
    assert not torch.equal(drawn, again)
    if not shared:
        assert p_value(drawn, every) > 1e-4


def quadratic_q(layer, hidden):
    scores = linear(hidden, layer.weight, layer.bias).detach().double()
    return torch.log_softmax(torch.log(100 * scores.square() + 1), 1).float()


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("optimizer", [RowAdagrad, RowAdam])
def test_kernel_noise_follows_the_weight_as_it_trains(optimizer, sparse, make_layer, make_batch):
    layer = make_layer(noise="quadratic", dtype=torch.float32, sparse=sparse)
    steps = optimizer(layer.parameters(), lr=0.3)
    probe, _ = make_batch(3, seed=9, dtype=torch.float32)
    before = quadratic_q(layer, probe)
    for seed in range(4):
        steps.zero_grad()
        layer(*make_batch(6, seed=seed, dtype=torch.float32)).backward()
        steps.step()
        now = layer.proposals.log_prob_all(probe, layer.weight, layer.bias)
        torch.testing.assert_close(now, quadratic_q(layer, probe), atol=1e-3, rtol=1e-3)
    assert float((now - before).abs().max()) > 0.1


def test_kernel_noise_sees_what_another_layer_does_to_a_shared_weight(make_batch):
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(40, 6, sparse=True)
    layer = ExtremeSoftmax(6, 40, noise="quadratic", n_negatives=3, weight=embedding.weight)
    steps = RowAdagrad(layer.parameters(), lr=0.5)
    probe, words = make_batch(3, seed=9, dtype=torch.float32)
    layer(probe, words).backward()
    steps.step()
    steps.zero_grad()
    embedding(torch.arange(10, 20)).square().sum().backward()
    steps.step()
    now = layer.proposals.log_prob_all(probe, layer.weight, layer.bias)
    torch.testing.assert_close(now, quadratic_q(layer, probe), atol=1e-3, rtol=1e-3)


def test_kernel_noise_follows_a_float64_weight(make_layer, make_batch):
    layer = make_layer(noise="quadratic")  # float64, so the noise reads a copy.
    steps = RowAdagrad(layer.parameters(), lr=0.3)
    probe, _ = make_batch(3, seed=9)
    for seed in range(3):
        steps.zero_grad()
        layer(*make_batch(6, seed=seed)).backward()
        steps.step()
    now = layer.proposals.log_prob_all(probe, layer.weight, layer.bias)
    torch.testing.assert_close(now, quadratic_q(layer, probe), atol=1e-3, rtol=1e-3)


def test_a_copy_of_a_layer_follows_its_own_weight(make_layer, make_batch):
    layer = make_layer(noise="quadratic", dtype=torch.float32)
    hidden, target = make_batch(6, dtype=torch.float32)
    layer(hidden, target)
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.weight.mul_(-3.0)
    found = twin.proposals.log_prob_all(hidden, twin.weight, twin.bias)
    torch.testing.assert_close(found, quadratic_q(twin, hidden), atol=1e-3, rtol=1e-3)
    old = layer.proposals.log_prob_all(hidden, layer.weight, layer.bias)
    torch.testing.assert_close(old, quadratic_q(layer, hidden), atol=1e-3, rtol=1e-3)


def clusters(n, seed):
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(40, (n,), generator=generator)
    centers = 3 * torch.randn((40, 6), generator=torch.Generator().manual_seed(7))
    return centers[target] + 0.3 * torch.randn((n, 6), generator=generator), target


@pytest.mark.parametrize("objective", ["sampled_softmax", "nce"])
@pytest.mark.parametrize("noise", [TreeNoise(n_components=4), MixtureNoise()], ids=["tree", "mix"])
def test_tree_noise_is_refitted_to_the_latest_hidden_states(objective, noise, make_layer):
    layer = make_layer(
        objective=objective, noise=noise, refit_every=3, refit_rows=1500, dtype=torch.float32
    )
    probe, truth = clusters(500, 99)

    def likelihood(hidden):
        log_q = layer.proposals.log_prob_all(hidden, layer.weight, layer.bias)
        return float(log_q.gather(1, truth[:, None]).mean())

    for step in range(3):
        assert not layer.proposals.fitted
        layer(*clusters(400, step))
    layer(*clusters(400, 3))
    assert layer.proposals.fitted
    first = likelihood(probe)
    assert first > -np.log(40) + 1.0
    # The network negates its hidden states: the tree must adapt to the new ones.
    assert likelihood(-probe) < first - 1.0
    for step in range(4, 10):
        hidden, target = clusters(500, step)
        layer(-hidden, target)
    assert likelihood(-probe) > first - 0.3
    assert likelihood(probe) < first - 1.0


def test_a_loaded_tree_is_refitted_after_refit_every_steps(make_layer):
    settings = {"noise": TreeNoise(n_components=4), "refit_every": 3, "dtype": torch.float32}
    layer = make_layer(**settings)
    for step in range(5):
        layer(*clusters(400, step))
    other = make_layer(**settings)
    other(*clusters(400, 0))  # Loading discards these hidden states.
    other.load_state_dict(layer.state_dict())
    before = layer.proposals.noise.nodes_
    changed = []
    for step in range(5, 12):
        other(*clusters(400, step))
        now = other.proposals.noise.nodes_
        changed.append(not torch.equal(now, before))
        before = now.clone()
    # The step after three recorded steps refits the tree.
    assert changed == [False, False, False, True, False, False, True]


def test_other_parts_of_a_mixture_stay_fitted_while_its_tree_is_refitted(make_layer):
    layer = make_layer(noise=MixtureNoise(), refit_every=1, dtype=torch.float32)
    hidden, target = clusters(2000, 0)
    layer.fit_noise(hidden, target)
    tree, frequency = layer.proposals.noise.parts_
    nodes, counts = tree.nodes_.clone(), frequency.counts_.clone()
    for step in range(2):
        layer(*clusters(300, 1 + step))
    assert not torch.equal(tree.nodes_, nodes)
    assert torch.equal(frequency.counts_, counts)


def test_bigram_noise_reads_a_separate_context(make_layer):
    generator = torch.Generator().manual_seed(0)
    before = torch.randint(5, (3000,), generator=generator)
    after = (8 * before + (3 * torch.rand(3000, generator=generator)).long()) % 40
    layer = make_layer(noise=BigramNoise(), dtype=torch.float32)
    layer.fit_noise(before[:, None], after)
    hidden = torch.randn((2, 5, 6), generator=generator)
    context = torch.arange(5).expand(2, 5)
    layer(hidden, 8 * context, context).backward()
    layer(hidden, 8 * context, context[..., None]).backward()
    drawn, _ = layer.proposals.propose(
        context.reshape(-1, 1), 8 * context.reshape(-1), 7, False, layer.weight, layer.bias
    )
    near = drawn // 8 == context.reshape(-1, 1)
    assert float(near.double().mean()) > 0.9
    with pytest.raises(ValueError, match=r"context must have shape \(2, 5\) or"):
        layer(hidden, 8 * context, context[:1])


@pytest.mark.parametrize("name", NOISES)
def test_a_state_dict_restores_the_noise_and_the_draws(name, make_layer, make_batch):
    layer = fitted(make_layer, make_batch, name)
    hidden, target = make_batch(6, dtype=torch.float32)
    steps = RowAdagrad(layer.parameters(), lr=0.2)
    for _ in range(3):
        steps.zero_grad()
        layer(hidden, target).backward()
        steps.step()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = make_layer(seed=1, noise=name, dtype=torch.float32)
    other.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(3):
        assert torch.equal(layer(hidden, target), other(hidden, target))
    wrong = make_layer(noise="uniform" if name != "uniform" else "softmax")
    with pytest.raises((ValueError, RuntimeError), match="the state is from a layer with noise"):
        wrong.load_state_dict(layer.state_dict())


def test_a_state_dict_with_other_settings_is_rejected(make_layer):
    pairs = [
        (QuadraticNoise(alpha=7), QuadraticNoise(alpha=100)),
        (MixtureNoise(("uniform", QuadraticNoise(7))), MixtureNoise(("uniform", "quadratic"))),
    ]
    for mine, others in pairs:
        layer, other = make_layer(noise=mine), make_layer(noise=others)
        with pytest.raises((ValueError, RuntimeError), match=r"noise .*7.*, but this layer has"):
            other.load_state_dict(layer.state_dict())
    # Lists, tuples and arrays of equal values are equal settings.
    weights = make_layer(noise=MixtureNoise(("uniform", "softmax"), np.array([0.5, 0.5])))
    make_layer(noise=MixtureNoise(["uniform", "softmax"], [0.5, 0.5])).load_state_dict(
        weights.state_dict()
    )


def test_a_damaged_state_dict_is_rejected(make_layer, make_batch):
    layer = fitted(make_layer, make_batch, "tree")
    state = layer.state_dict()
    state["_extra_state"]["fitted"]["order"] = torch.full((40,), 99)
    other = make_layer(noise="tree", dtype=torch.float32)
    with pytest.raises(ValueError, match="order of the saved TreeNoise"):
        other.load_state_dict(state)
    assert not other.proposals.fitted


@pytest.mark.parametrize("parts", [("uniform", "frequency"), ("quadratic", "frequency")])
def test_a_mixture_fitted_to_any_columns_is_restored(parts, make_layer, make_batch):
    hidden, target = make_batch(6)
    layer, other = (make_layer(noise=MixtureNoise(parts)) for _ in range(2))
    for features in (None, target[:, None]):
        layer.fit_noise(features, target)
        layer(hidden, target)
        other.load_state_dict(layer.state_dict())
        assert torch.equal(layer(hidden, target), other(hidden, target))


def test_draws_follow_the_seed_of_torch(make_layer, make_batch):
    hidden, target = make_batch(6)
    first, again, other = make_layer(seed=3), make_layer(seed=3), make_layer(seed=4)
    assert first.proposals.seed == again.proposals.seed != other.proposals.seed
    assert torch.equal(first(hidden, target), again(hidden, target))
    assert not torch.equal(first(hidden, target), first(hidden, target))


def test_the_given_noise_is_not_attached(make_layer, make_batch):
    noise = QuadraticNoise().fit(np.empty((0, 6)), np.empty(0, np.int64), 40)
    layer = make_layer(noise=noise)
    layer(*make_batch(4))
    with pytest.raises(ValueError, match="attach"):
        noise.log_prob_all(noise.context(np.zeros((1, 6), np.float32)))
