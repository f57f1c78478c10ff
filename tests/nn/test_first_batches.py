"""Noise and biases by class frequency: from labels, or from the first batches."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch

from extremax.nn import ExtremeSoftmax, RowAdagrad
from extremax.noise import FrequencyNoise, TreeNoise

C = 40


def layer_of(**settings) -> ExtremeSoftmax:
    torch.manual_seed(0)
    return ExtremeSoftmax(6, C, **{"n_negatives": 7} | settings)


def batch(seed: int, n: int = 16):
    generator = torch.Generator().manual_seed(seed)
    # Class y has p ∝ 1/(y + 1), roughly.
    target = (C ** torch.rand(n, generator=generator)).long() - 1
    return torch.randn((n, 6), generator=generator), target


def with_good_turing(labels: torch.Tensor) -> np.ndarray:
    counts = np.bincount(labels.numpy(), minlength=C)
    unseen = ((counts == 1).sum() + 1) / (len(labels) + 1)
    return np.log((1 - unseen) * counts / len(labels) + unseen / C)


def test_labels_fit_the_noise_and_start_the_biases():
    labels = torch.cat([torch.tensor([0] * 30 + [1] * 10 + [7]), torch.full((5,), -100)])
    layer = layer_of(labels=labels)
    counts = np.ones(C)
    counts[[0, 1]] = 30, 10
    expected = torch.from_numpy(np.log(counts / counts.sum())).float()
    torch.testing.assert_close(layer.bias.detach(), expected)
    assert isinstance(layer.proposals.noise, FrequencyNoise)
    torch.testing.assert_close(layer.proposals.noise.log_q_, expected)
    hidden, target = batch(0)
    layer(hidden, target)
    torch.testing.assert_close(layer.bias.detach(), expected)


def test_labels_leave_other_noises_to_fit_noise_and_start_biases_all_the_same():
    _, target = batch(0, 200)
    layer = layer_of(labels=target, noise=TreeNoise(2))
    assert not layer.proposals.fitted
    expected = layer_of(noise="uniform")
    expected.start_bias(target)
    assert torch.equal(layer.bias, expected.bias)
    fitted = FrequencyNoise().fit(np.zeros((3, 1)), np.array([5, 5, 6]), C)
    layer = layer_of(labels=target, noise=fitted)
    assert torch.equal(layer.proposals.noise.log_q_, fitted.log_q_)
    assert layer_of(labels=target, noise="log_uniform").proposals.fitted
    assert layer_of(labels=target, bias=False).proposals.fitted
    exact = layer_of(labels=target, objective="exact")
    assert torch.equal(exact.bias, expected.bias)


def test_labels_that_are_no_classes_are_named():
    with pytest.raises(ValueError, match="labels has class 40, not in"):
        layer_of(labels=torch.tensor([1, 40]))
    with pytest.raises(TypeError, match="labels must be a torch tensor, got list"):
        layer_of(labels=[1, 2])
    with pytest.raises(TypeError, match=r"labels must be integers, got torch.float32"):
        layer_of(labels=torch.rand(3))


def test_first_batches_take_the_place_of_labels(device):
    layer = layer_of(device=device)
    seen = []
    for step in range(1, 8):
        hidden, target = batch(step)
        target[3] = -100
        layer(hidden.to(device), target.to(device))
        seen.append(target[target >= 0])
        if step in (1, 2, 4):
            labels = torch.cat(seen)
        # Nothing is trained here, so biases are those of the start.
        torch.testing.assert_close(
            layer.bias.detach().cpu().double(),
            torch.from_numpy(with_good_turing(labels)),
            atol=1e-5,
            rtol=0,
        )
        counts = torch.bincount(labels, minlength=C)
        assert torch.equal(layer.proposals.noise.counts_, counts)
    # Evaluation counts nothing.
    layer.eval()(hidden.to(device), target.to(device))
    assert layer._first.n_batches == 7


def test_biases_keep_what_they_have_learned_when_the_counts_change():
    layer = layer_of()
    layer(*batch(1))
    with torch.no_grad():
        layer.bias[3] += 0.5
    before = layer.bias.detach().clone()
    layer(*batch(2))
    shift = with_good_turing(torch.cat([batch(1)[1], batch(2)[1]])) - with_good_turing(batch(1)[1])
    expected = before.double() + torch.from_numpy(shift)
    torch.testing.assert_close(layer.bias.detach().double(), expected, atol=1e-5, rtol=0)


def test_counting_ends(monkeypatch):
    monkeypatch.setattr("extremax.nn.first_batches._LAST", 4)
    layer = layer_of()
    for step in range(4):
        layer(*batch(step))
    bias, counts = layer.bias.detach().clone(), layer.proposals.noise.counts_.clone()
    assert int(counts.sum()) == 64
    for step in range(4, 20):
        layer(*batch(step))
    assert torch.equal(layer.bias, bias)
    assert torch.equal(layer.proposals.noise.counts_, counts)


def test_biases_that_were_set_are_left_alone():
    hidden, target = batch(0)
    started, changed = layer_of(), layer_of()
    started.start_bias(target)
    with torch.no_grad():
        changed.bias[0] = 1.0
    for layer in (started, changed):
        before = layer.bias.detach().clone()
        layer(hidden, target)
        assert torch.equal(layer.bias, before)
        assert layer.proposals.fitted
    layer = layer_of()
    layer.fit_noise(None, target)
    before = layer.bias.detach().clone()
    layer(*batch(1))
    assert torch.equal(layer.bias, before)
    assert torch.equal(layer.proposals.noise.counts_, torch.bincount(target, minlength=C))


def test_negative_sampling_has_one_q_for_all_of_training():
    layer = layer_of(objective="negative_sampling")
    hidden, target = batch(0)
    # Before the first batch, q is uniform: the logits are ξ, up to a constant.
    expected = torch.nn.functional.linear(hidden, layer.weight, layer.bias).log_softmax(1)
    torch.testing.assert_close(layer.log_prob(hidden), expected)
    for step in range(5):
        layer(*batch(step))
    assert torch.equal(layer.proposals.noise.counts_, torch.bincount(target, minlength=C))


def test_a_noise_that_is_named_must_still_be_fitted():
    with pytest.raises(ValueError, match=r"is not fitted: call fit_noise.* or pass labels="):
        layer_of(noise="frequency")(*batch(0))


@pytest.mark.parametrize("n_before", [0, 3])
def test_a_state_dict_and_a_copy_continue_the_counts(n_before):
    layer = layer_of()
    steps = RowAdagrad(layer.parameters(), lr=0.1)

    def train(some_layer, optimizer, numbers):
        for number in numbers:
            optimizer.zero_grad()
            some_layer(*batch(number)).backward()
            optimizer.step()

    train(layer, steps, range(n_before))
    file = io.BytesIO()
    torch.save([layer.state_dict(), steps.state_dict()], file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    torch.manual_seed(9)
    loaded, copied = ExtremeSoftmax(6, C, n_negatives=7), copy.deepcopy(layer)
    loaded.load_state_dict(saved[0])
    train(layer, steps, range(n_before, 9))
    for other in (loaded, copied):
        optimizer = RowAdagrad(other.parameters(), lr=0.1)
        optimizer.load_state_dict(copy.deepcopy(saved[1]))
        train(other, optimizer, range(n_before, 9))
        assert torch.equal(other.weight, layer.weight)
        assert torch.equal(other.bias, layer.bias)
        assert torch.equal(other.proposals.noise.counts_, layer.proposals.noise.counts_)


def test_a_state_of_labels_loads_into_a_layer_without():
    layer, other = layer_of(labels=batch(0)[1]), layer_of()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(*batch(1)), other(*batch(1)))
    assert torch.equal(layer.bias, other.bias)


def test_a_damaged_count_is_refused():
    layer = layer_of()
    layer(*batch(0))
    for broken in (torch.zeros(3, dtype=torch.int64), torch.full((C,), -1), torch.zeros(C)):
        state = layer.state_dict()
        state["_extra_state"]["first_batches"]["counts"] = broken
        with pytest.raises(ValueError, match="of the first batches in the state"):
            layer_of().load_state_dict(state)


@pytest.mark.parametrize("with_labels", [True, False])
def test_the_shortest_call_begins_near_the_frequencies_and_learns(with_labels):
    """Hidden states that say little: uniform noise with biases at rest needs many steps to find out
    which classes are frequent."""
    n_classes = 2000
    generator = torch.Generator().manual_seed(0)
    target = (n_classes ** torch.rand(3200, generator=generator)).long() - 1
    hidden = torch.randn((len(target), 6), generator=generator)
    share = torch.bincount(target, minlength=n_classes).double() / len(target)
    entropy = -float((share * torch.log(share.clamp(min=1e-9))).sum())

    def loss_after(n_steps, **settings):
        torch.manual_seed(0)
        layer = ExtremeSoftmax(6, n_classes, n_negatives=20, **settings)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
        for rows in torch.arange(len(target)).split(32)[:n_steps]:
            optimizer.zero_grad()
            layer(hidden[rows], target[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            return float(layer.eval()(hidden, target))

    ours = {"labels": target} if with_labels else {}
    if with_labels:
        assert loss_after(0, **ours) < entropy + 0.6
    assert loss_after(100, **ours) < entropy + 0.6
    assert loss_after(100, noise="uniform") > entropy + 0.9
