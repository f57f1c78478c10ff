"""The sequence generator: its policy gradients against enumeration, its cells and its report."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

WORDS, LENGTH = 3, 3


def random_policy(load: Any, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    policy = load("_sequences").Policy(WORDS, 4).double()
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter)
    return policy


@pytest.fixture
def policy(load: Any) -> torch.nn.Module:
    return random_policy(load, 0)


def every_sequence() -> Tensor:
    return torch.tensor(list(itertools.product(range(WORDS), repeat=LENGTH)))


def probabilities(policy: torch.nn.Module) -> Tensor:
    """G of every sequence, the product of the probabilities of its words."""
    sequences = every_sequence()
    logs = policy(sequences).log_softmax(-1)
    return logs.gather(-1, sequences[..., None]).squeeze(-1).sum(1).exp()


def random_reward(sequences: Tensor) -> Tensor:
    """A random number between 0 and 1 for each of the 27 sequences."""
    table = torch.rand(27, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return table[sequences @ torch.tensor([9, 3, 1])]


def flat_gradient(value: Tensor, policy: torch.nn.Module) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(policy.parameters()))])


@pytest.mark.parametrize("name", ["reinforce_leave_one_out", "reinforce_running_mean"])
def test_the_policy_gradient_is_that_of_the_expected_reward(
    load: Any, policy: torch.nn.Module, name: str
) -> None:
    sequences = every_sequence()
    assert float(probabilities(policy).detach().sum()) == pytest.approx(1.0)
    truth = flat_gradient((probabilities(policy) * random_reward(sequences)).sum(), policy)

    # Sampling sequences from G would add noise, so all of them are used, weighted by G.
    copies, calls = 20, 60
    weights = probabilities(policy).detach().repeat(copies) / copies
    estimator = load("extremax.discrete").ESTIMATORS[name]()
    generator = torch.Generator().manual_seed(2)
    found = torch.zeros(calls, len(truth), dtype=torch.float64)
    for call in range(calls):
        loss = policy.rollout_loss(
            sequences.repeat(copies, 1), random_reward, estimator, 4, 2, generator
        )
        assert loss.shape == (27 * copies, LENGTH)
        found[call] = -flat_gradient((weights @ loss).sum(), policy)
    mean, error = found.mean(0), found.std(0) / calls**0.5
    # Some embeddings are never read; their gradient is exactly 0, without error.
    t = (mean - truth).abs() / error.clamp(min=1e-12)
    # Student's t of 59 degrees: p of 1e-5 for one parameter, about 1e-3 for all of them.
    assert float(t.max()) < 4.8
    assert float((mean - truth).norm() / truth.norm()) < 0.1


def test_rollouts_keep_the_prefix_and_their_mean_reward_is_q(policy: torch.nn.Module) -> None:
    sequences = every_sequence()
    n_rollouts = 2000
    action = torch.tensor([2, 0, 1])
    actions = action.expand(n_rollouts, len(sequences), LENGTH)
    whole = policy.rollouts(sequences, actions, torch.Generator().manual_seed(3))
    rewards = random_reward(whole)
    probability, reward = probabilities(policy).detach(), random_reward(sequences)
    for i, sequence in enumerate(sequences):
        for t in range(LENGTH):
            prefix = torch.cat([sequence[:t], action[t : t + 1]])
            assert bool((whole[:, i, t, : t + 1] == prefix).all())
            # Q(s, a) = Σ G(y) D(y) / Σ G(y) over the sequences with this prefix.
            matches = (sequences[:, : t + 1] == prefix).all(1)
            q = (probability * reward)[matches].sum() / probability[matches].sum()
            drawn = rewards[:, i, t]
            if t == LENGTH - 1:
                assert bool((drawn == q).all())
            else:
                # 54 comparisons, p of 6e-6 each.
                assert abs(float(drawn.mean() - q)) < 4.5 * float(drawn.std()) / n_rollouts**0.5


def test_the_word_loss_is_the_expected_score_of_the_next_word(
    load: Any, policy: torch.nn.Module
) -> None:
    sequences = every_sequence()
    scores = torch.randn(27, LENGTH, WORDS, dtype=torch.float64)
    expected = -(policy(sequences).softmax(-1) * scores).sum(-1)
    torch.testing.assert_close(policy.word_loss(sequences, scores), expected)


def test_the_optimal_discriminator_has_the_lowest_loss_and_sums_its_word_scores(
    load: Any, policy: torch.nn.Module
) -> None:
    networks = load("_sequences")
    oracle = random_policy(load, 1)
    optimal = networks.OptimalDiscriminator(oracle, policy)
    sequences = every_sequence()
    scores = optimal.word_scores(sequences).gather(-1, sequences[..., None]).squeeze(-1).sum(1)
    torch.testing.assert_close(optimal(sequences), scores)
    # D = p/(p + G) is where the derivative of its expected loss is zero, for each sequence.
    p, g = probabilities(oracle).detach(), probabilities(policy).detach()
    logits = optimal(sequences).detach().requires_grad_()
    loss = -(p * torch.nn.functional.logsigmoid(logits)).sum()
    loss = loss - (g * torch.nn.functional.logsigmoid(-logits)).sum()
    assert float(torch.autograd.grad(loss, logits)[0].abs().max()) < 1e-12


def test_the_discriminator_sums_its_word_scores(load: Any) -> None:
    torch.manual_seed(0)
    discriminator = load("_sequences").Discriminator(WORDS, 4, 0.5).eval()
    sequences = every_sequence()
    scores = discriminator.word_scores(sequences).gather(-1, sequences[..., None])
    torch.testing.assert_close(discriminator(sequences), scores.flatten(1).sum(1))


def test_a_gain_is_measured_against_the_temperature_of_equal_held_out_nll(load: Any) -> None:
    compare = load("_sequence_report").against_temperature
    # Held-out NLL 2 + (1 − T)², oracle NLL 5T − 2.
    curve = [(t, 2 + (1 - t) ** 2, 5 * t - 2) for t in (1.1, 1.0, 0.9, 0.8, 0.6)]
    keys = ("temperature", "held_out", "oracle")
    likelihood = {"tempered": [dict(zip(keys, point, strict=True)) for point in curve]}
    # Equal held-out NLL at 0.7; 1.3 is worse in both numbers and does not count.
    assert compare({"held_out": 2.09, "oracle": 1.4}, likelihood) == pytest.approx(-0.1, abs=1e-4)
    # Below the lowest NLL, at 1, and above that of the lowest temperature, 0.6.
    assert compare({"held_out": 1.9, "oracle": 2.4}, likelihood) == pytest.approx(-0.6, abs=1e-2)
    assert compare({"held_out": 3.0, "oracle": 1.4}, likelihood) == pytest.approx(0.4)


def test_cells_run_and_are_reported(
    load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load("sequence_gan")
    records = []
    for stage in script.cells(quick=True, seeds=2):
        for cell in stage:
            records.append({"cell": cell, "result": script.work(cell, tmp_path)})
    likelihood, adversarial = records[:2], records[2:]
    # A seed fixes the result, whatever ran before it.
    torch.rand(3)
    assert script.work(adversarial[0]["cell"], tmp_path) == adversarial[0]["result"]
    assert adversarial[0]["result"] != adversarial[1]["result"]
    # Results may be kept without the generators that were stored beside them.
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    assert script.work(adversarial[0]["cell"], tmp_path) == adversarial[0]["result"]
    for record in adversarial:
        # Adversarial training starts where maximum likelihood of its seed ended.
        before = likelihood[record["cell"]["seed"]]["result"]["tempered"]
        start = dict(record["result"]["curve"][0])
        assert start.pop("round") == 0
        assert start in before
    for record in likelihood:
        best = min(nll for _, nll in record["result"]["curve"])
        assert best < record["result"]["curve"][0][1]
        oracle = record["result"]["of_oracle"]
        assert oracle["reverse_kl"] == 0
        # No generator covers the oracle's sequences as well as the oracle itself.
        assert oracle["held_out"] < min(p["held_out"] for p in record["result"]["tempered"])
    script.report(records, [record["cell"] for record in records], tmp_path)
    text = capsys.readouterr().out
    assert text.count("adversarial: ") == len(script.QUICK_PLAN)
    # Without the last run.
    script.report(records[:-1], [record["cell"] for record in records], tmp_path)
    text = capsys.readouterr().out
    assert text.startswith(
        f"{len(records) - 1} of {len(records)} runs; missing: quick: warm_up = 5"
    )
    seeds = [line.split(" | ")[1] for line in text.splitlines() if "adversarial: " in line]
    assert seeds == ["2", "2", "1"]
    assert (tmp_path / "reproduce_sequence_gan.png").stat().st_size > 10_000


def test_every_planned_setting_is_one(load: Any) -> None:
    script = load("sequence_gan")
    for problem, change in script.PLAN:
        assert problem in script.PROBLEMS
        assert script.Setting(**change).estimator in load("extremax.discrete").ESTIMATORS
    first, then = script.cells(quick=False, seeds=5)
    assert len(first) == 10
    assert len(then) == 5 * len(script.PLAN)
