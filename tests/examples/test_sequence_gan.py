"""The sequence generator: its policy gradient against enumeration, and the quick version."""

import importlib.util
import itertools
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

SCRIPT = Path(__file__).parents[2] / "examples" / "sequence_gan.py"
WORDS, LENGTH = 3, 3


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sequence_gan", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def policy(example: ModuleType) -> torch.nn.Module:
    torch.manual_seed(0)
    policy = example.Policy(WORDS, 4).double()
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter)
    return policy


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


def test_the_policy_gradient_is_that_of_the_expected_reward(
    example: ModuleType, policy: torch.nn.Module
) -> None:
    parameters = list(policy.parameters())
    sequences = every_sequence()
    assert float(probabilities(policy).detach().sum()) == pytest.approx(1.0)
    expected = (probabilities(policy) * random_reward(sequences)).sum()
    truth = torch.cat([g.flatten() for g in torch.autograd.grad(expected, parameters)])

    # Sampling sequences from G would add noise, so all of them are used, weighted by G.
    copies, calls = 20, 100
    weights = probabilities(policy).detach().repeat(copies) / copies
    generator = torch.Generator().manual_seed(2)
    found = torch.zeros(calls, len(truth), dtype=torch.float64)
    for call in range(calls):
        loss = policy.loss(sequences.repeat(copies, 1), random_reward, generator)
        assert loss.shape == (27 * copies, LENGTH)
        gradient = torch.autograd.grad((weights @ loss).sum(), parameters)
        found[call] = -torch.cat([g.flatten() for g in gradient])
    mean, error = found.mean(0), found.std(0) / calls**0.5
    # Some embeddings are never read; their gradient is exactly 0, without error.
    t = (mean - truth).abs() / error.clamp(min=1e-12)
    # Two-sided p of 6e-6 for one parameter, about 1e-3 for all of them.
    assert float(t.max()) < 4.5
    assert float((mean - truth).norm() / truth.norm()) < 0.05


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


def test_a_seed_fixes_the_curves(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "BATCH", 8)
    monkeypatch.setattr(example, "ROUND_COST", 5)
    sizes = example.Sizes(train=200, pretraining=5, warm_up=2, rounds=7, evaluated=50, seeds=1)
    first = example.compare(0, sizes)
    torch.rand(10)
    assert example.compare(0, sizes).curves == first.curves
    assert example.compare(1, sizes).curves != first.curves
    # Both start from the same point and end with the same budget.
    ends = [first.curves[name][-1].cost for name in (example.ML, example.GAN)]
    assert ends == [2 * example.D_COST + 7 * 5] * 2
    assert first.curves[example.ML][0] == first.curves[example.GAN][0]


def test_the_quick_version(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    row = r"^(\w.*?) {2,}([\d.]+) ± [\d.]+ +([\d.]+) ± [\d.]+"
    rows = {name: (float(a), float(b)) for name, a, b in re.findall(row, run.stdout, re.M)}
    start, likelihood, adversarial, cooler, oracle = rows.values()
    assert list(rows)[1:3] == ["maximum likelihood", "adversarial"]
    # More training helps, and so does a lower temperature.
    assert likelihood[1] < start[1]
    assert likelihood[0] < start[0]
    assert cooler[0] < likelihood[0]
    # No generator covers the oracle's sequences as well as the oracle itself.
    assert oracle[1] == min(values[1] for values in rows.values())
    differences = re.findall(r"NLL, adversarial − likelihood: ([-+][\d.]+)", run.stdout)
    for text, ours, theirs in zip(differences, adversarial, likelihood, strict=True):
        assert float(text) == pytest.approx(ours - theirs, abs=0.0016)
    assert (tmp_path / "sequence_gan.png").stat().st_size > 10_000
