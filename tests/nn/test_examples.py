"""Augment & reduce in a layer: what it keeps per example, its state, and its errors."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch.nn.functional import linear

from extremax.nn import RowAdagrad
from extremax.objectives import OBJECTIVES, Pairs
from extremax.random import Purpose, Stream

NAMES = [name for name in OBJECTIVES if name.startswith("augment_reduce")]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_are_those_of_the_objective(name, shared, make_layer, make_batch):
    layer = make_layer(objective=name, shared=shared, n_examples=12, reduction="none")
    objective, proposals = layer.objective, layer.proposals
    hidden, target = make_batch(12)
    kept = objective.per_example_start(12).double()
    seen = [0] * 12
    for step in range(5):
        # Batches cross the ends of epochs: examples have been seen once or twice.
        numbers = torch.arange(7 * step, 7 * step + 7) % 12
        drawn, log_q = copy.deepcopy(proposals).propose(
            hidden[numbers], target[numbers], 7, shared, layer.weight, layer.bias
        )
        scores = linear(hidden[numbers], layer.weight, layer.bias).detach()
        classes = torch.cat([target[numbers, None], drawn.expand(7, 7)], 1)
        hits = classes[:, 1:] == classes[:, :1]
        pairs = Pairs(scores.gather(1, classes), log_q.double(), hits, kept[numbers])
        current = objective.current_per_example(pairs)
        for i, number in enumerate(numbers.tolist()):
            stream = Stream.of(
                proposals.seed, Purpose.PER_EXAMPLE, seen[number], rows=numbers[i : i + 1].numpy()
            )
            uniform = torch.from_numpy(stream.uniform(objective.per_example_size))
            one = Pairs(*(part[i : i + 1] for part in pairs))
            kept[number] = objective.update_per_example(one, seen[number], uniform)[0]
            seen[number] += 1
        pairs = pairs._replace(per_example=current)
        layer.zero_grad()
        losses = layer(hidden[numbers], target[numbers], examples=numbers)
        losses.sum().backward()
        torch.testing.assert_close(losses, objective.loss(pairs))
        gradient = torch.zeros(40, dtype=torch.float64)
        gradient.index_add_(0, classes.reshape(-1), objective.gradient(pairs).reshape(-1))
        torch.testing.assert_close(layer.bias.grad.to_dense(), gradient)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_dict_restores_what_examples_keep(name, make_layer, make_batch):
    settings = {"objective": name, "n_examples": 9, "dtype": torch.float32}
    layer, other = make_layer(**settings), make_layer(seed=1, **settings)
    hidden, target = make_batch(9, dtype=torch.float32)
    numbers = torch.arange(9)
    steps = RowAdagrad(layer.parameters(), lr=0.1)
    for _ in range(3):
        steps.zero_grad()
        layer(hidden, target, examples=numbers).backward()
        steps.step()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    other.load_state_dict(state)
    for _ in range(2):
        found = other(hidden, target, examples=numbers)
        assert torch.equal(found, layer(hidden, target, examples=numbers))
    # The state is a copy: the steps of the layer have not changed it.
    make_layer(**settings).load_state_dict(state)
    assert int(state["_extra_state"]["examples"]["n_updates"].max()) == 3
    with pytest.raises(ValueError, match=r"shape \(9, .\) for its examples, .* has \(8, .\)"):
        make_layer(**settings | {"n_examples": 8}).load_state_dict(state)
    with pytest.raises(ValueError, match="the state has no parameters of examples"):
        make_layer(**settings).load_state_dict(make_layer(dtype=torch.float32).state_dict())
    state["_extra_state"]["examples"]["values"][2] = float("nan")
    with pytest.raises(ValueError, match=r"parameters of examples in the state .* are damaged"):
        make_layer(**settings).load_state_dict(state)


def test_training_comes_near_exact_softmax(make_layer):
    generator = torch.Generator().manual_seed(5)
    target = torch.randint(40, (800,), generator=generator)
    hidden = torch.randn((40, 6), generator=generator)[target]
    hidden = hidden + 0.7 * torch.randn((800, 6), generator=generator)
    losses = []
    for objective in ("exact", "augment_reduce"):
        layer = make_layer(objective=objective, n_examples=800, n_negatives=10, dtype=torch.float32)
        steps = RowAdagrad(layer.parameters(), lr=0.2)
        for _ in range(20):
            for batch in torch.randperm(800, generator=generator).split(100):
                steps.zero_grad()
                layer(hidden[batch], target[batch], examples=batch).backward()
                steps.step()
        losses.append(float(layer.eval()(hidden, target).detach()))
    assert losses[0] < 2.5
    assert abs(losses[1] - losses[0]) < 0.1


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_needs_no_examples_and_updates_none(name, make_layer, make_batch):
    layer = make_layer(objective=name, n_examples=5)
    hidden, target = make_batch(5)
    before = copy.deepcopy(layer.get_extra_state()["examples"])
    loss = layer.eval()(hidden, target)
    scores = linear(hidden, layer.weight, layer.bias).detach()
    log_p = layer.objective.log_normalize(scores)
    torch.testing.assert_close(layer.log_prob(hidden).detach(), log_p)
    torch.testing.assert_close(loss.detach(), -log_p.gather(1, target[:, None]).mean())
    for key, value in before.items():
        assert torch.equal(value, layer.get_extra_state()["examples"][key])


def test_ignored_targets_are_not_updated(make_layer, make_batch):
    layer = make_layer(objective="augment_reduce", n_examples=4)
    hidden, target = make_batch(2, 2)
    target[1, 0] = -100
    # Numbers of ignored targets do not matter.
    layer(hidden, target, examples=torch.tensor([[0, 1], [-7, 3]]))
    assert layer.get_extra_state()["examples"]["n_updates"].tolist() == [1, 1, 0, 1]


def test_invalid_examples_are_named(make_layer, make_batch):
    layer = make_layer(objective="augment_reduce", n_examples=10)
    hidden, target = make_batch(4)
    numbers = torch.arange(4)
    with pytest.raises(ValueError, match="examples must be given to train AugmentReduce"):
        layer(hidden, target)
    with pytest.raises(ValueError, match=r"examples has number 10, not in 0..9 \(n_examples\)"):
        layer(hidden, target, examples=numbers + 7)
    with pytest.raises(ValueError, match="examples has number 2 twice in one batch"):
        layer(hidden, target, examples=torch.tensor([0, 2, 1, 2]))
    with pytest.raises(ValueError, match=r"examples has shape \(3,\), expected \(4,\)"):
        layer(hidden, target, examples=numbers[:3])
    with pytest.raises(TypeError, match=r"examples must be integers, got torch.float32"):
        layer(hidden, target, examples=numbers.float())
    with pytest.raises(TypeError, match="examples must be a torch tensor, got list"):
        layer(hidden, target, examples=numbers.tolist())
    with pytest.raises(ValueError, match="examples is on meta but target is on cpu"):
        layer(hidden, target, examples=numbers.to("meta"))
    assert layer.proposals.n_steps == 0
    with pytest.raises(ValueError, match="n_examples must be an integer >= 1, got 0"):
        make_layer(objective="augment_reduce", n_examples=0)
