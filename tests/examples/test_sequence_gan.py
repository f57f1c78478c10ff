"""The sequence generator: its policy gradient against enumeration, and the quick form."""

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
def story() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sequence_gan", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def policy(story: ModuleType) -> torch.nn.Module:
    torch.manual_seed(0)
    policy = story.Policy(WORDS, 4).double()
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter)
    return policy


def every_sequence() -> Tensor:
    return torch.tensor(list(itertools.product(range(WORDS), repeat=LENGTH)))


def chances(policy: torch.nn.Module) -> Tensor:
    """G of every sequence, the product of its words' probabilities."""
    sequences = every_sequence()
    logs = policy(sequences).log_softmax(-1)
    return logs.gather(-1, sequences[..., None]).squeeze(-1).sum(1).exp()


def some_reward(sequences: Tensor) -> Tensor:
    """A different number between 0 and 1 for each of the 27 sequences, in no order."""
    table = torch.rand(27, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return table[sequences @ torch.tensor([9, 3, 1])]


def test_the_policy_gradient_is_that_of_the_expected_reward(
    story: ModuleType, policy: torch.nn.Module
) -> None:
    parameters = list(policy.parameters())
    sequences = every_sequence()
    assert float(chances(policy).detach().sum()) == pytest.approx(1.0)
    expected = (chances(policy) * some_reward(sequences)).sum()
    truth = torch.cat([g.flatten() for g in torch.autograd.grad(expected, parameters)])

    # Sequences in proportion to G would be noise of their own: all of them instead, weighted.
    copies, calls = 20, 100
    weights = chances(policy).detach().repeat(copies) / copies
    generator = torch.Generator().manual_seed(2)
    found = torch.zeros(calls, len(truth), dtype=torch.float64)
    for call in range(calls):
        loss = policy.loss(sequences.repeat(copies, 1), some_reward, generator)
        assert loss.shape == (27 * copies, LENGTH)
        gradient = torch.autograd.grad((weights @ loss).sum(), parameters)
        found[call] = -torch.cat([g.flatten() for g in gradient])
    mean, error = found.mean(0), found.std(0) / calls**0.5
    # The words after the last are never read, so that their gradient is 0 without any error.
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
    rewards = some_reward(whole)
    chance, reward = chances(policy).detach(), some_reward(sequences)
    for i, sequence in enumerate(sequences):
        for t in range(LENGTH):
            begin = torch.cat([sequence[:t], action[t : t + 1]])
            assert bool((whole[:, i, t, : t + 1] == begin).all())
            # Q(s, a) = Σ G(y) D(y) / Σ G(y) over the sequences that begin so.
            inside = (sequences[:, : t + 1] == begin).all(1)
            q = (chance * reward)[inside].sum() / chance[inside].sum()
            drawn = rewards[:, i, t]
            if t == LENGTH - 1:
                assert bool((drawn == q).all())
            else:
                # 54 comparisons, p of 6e-6 each.
                assert abs(float(drawn.mean() - q)) < 4.5 * float(drawn.std()) / n_rollouts**0.5


def test_a_seed_gives_the_same_curves_whatever_ran_before(
    story: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(story, "BATCH", 8)
    monkeypatch.setattr(story, "ROUND_COST", 5)
    sizes = story.Sizes(train=200, pretraining=5, warm_up=2, rounds=7, judged=50, seeds=1)
    first = story.compare(0, sizes)
    torch.rand(10)
    assert story.compare(0, sizes).curves == first.curves
    assert story.compare(1, sizes).curves != first.curves
    # Both begin alike and end when the same budget is spent.
    ends = [first.curves[name][-1].cost for name in (story.ML, story.GAN)]
    assert ends == [2 * story.D_COST + 7 * 5] * 2
    assert first.curves[story.ML][0] == first.curves[story.GAN][0]


def test_the_story_of_the_sequence_gan(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    row = r"^(\w.*?) {2,}([\d.]+) ± [\d.]+ +([\d.]+) ± [\d.]+"
    rows = {name: (float(a), float(b)) for name, a, b in re.findall(row, run.stdout, re.M)}
    start, alone, adversarial, cooler, oracle = rows.values()
    assert list(rows)[1:3] == ["maximum likelihood", "adversarial"]
    # More likelihood helps it; to draw what is likelier at a lower temperature does too.
    assert alone[1] < start[1]
    assert alone[0] < start[0]
    assert cooler[0] < alone[0]
    # Nobody covers the oracle's sequences as well as itself.
    assert oracle[1] == min(values[1] for values in rows.values())
    said = re.findall(r"NLL, adversarial − likelihood: ([-+][\d.]+)", run.stdout)
    for text, ours, theirs in zip(said, adversarial, alone, strict=True):
        assert float(text) == pytest.approx(ours - theirs, abs=0.0016)
    assert (tmp_path / "sequence_gan.png").stat().st_size > 10_000
