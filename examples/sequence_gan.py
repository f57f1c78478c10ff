"""A sequence generator trained against a discriminator, compared with maximum likelihood.

The data come from a fixed random LSTM, the oracle: it generates 10,000 training sequences and
scores generated sequences by their likelihood (Yu et al. 2017, SeqGAN). Words are discrete, so no
gradient flows from the discriminator D to the generator G. Instead G is a policy, with

    ∇E D(Y) = Σ_t E[Σ_a Q(y_<t, a) ∇G(a|y_<t)],   Q(s, a) = mean of D over rollouts from s, a.

The inner sum is a gradient through one categorical variable, which `extremax.discrete` estimates:
four actions per state with a leave-one-out baseline, two rollouts per action.

Both methods start from the same G and have the same sequences and time: one round of adversarial
training takes as long as 45 steps of maximum likelihood.

Adversarial training loses here: over five seeds the oracle's NLL of generated sequences goes from
3.15 nats per word to 3.12, with maximum likelihood to 3.08. The NLL that G assigns to held-out
sequences shows the same order. A temperature of 0.95 alone takes maximum likelihood to 2.99: a
generator that produces little but likely sequences also has a low oracle NLL, so read the two
numbers together.

    python examples/sequence_gan.py            # five seeds, one core, about five minutes
    python examples/sequence_gan.py --quick    # two seeds of a smaller version, seconds
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from scipy import stats
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from extremax.discrete import Categorical, LeaveOneOutReinforce, gumbel_max

WORDS, LENGTH, UNITS, BATCH = 50, 10, 16, 64
ACTIONS, ROLLOUTS, D_STEPS = 4, 2, 3
# Costs of a round and of a step of D, in steps of maximum likelihood, measured on one core.
ROUND_COST, D_COST = 45, 3
ML_RATE, G_RATE, D_RATE = 5e-3, 2e-3, 3e-3
EVALUATIONS = 10
TEMPERATURES = (1.0, 0.975, 0.95, 0.925, 0.9)
ML, GAN = "maximum likelihood", "adversarial"
COLORS = {ML: "#0072B2", GAN: "#D55E00"}
Reward = Callable[[Tensor], Tensor]
console = Console(width=88)


class Sizes(NamedTuple):
    train: int  # sequences
    pretraining: int  # steps of maximum likelihood, shared by both methods
    warm_up: int  # steps of D before the first round
    rounds: int
    evaluated: int  # sequences per evaluation, generated and real
    seeds: int


FULL = Sizes(10_000, 3000, 600, 150, 4000, 5)
QUICK = Sizes(2000, 300, 60, 10, 1000, 2)


class Point(NamedTuple):
    """One evaluation: cost in steps, oracle NLL of generated sequences, NLL of held-out ones."""

    cost: int
    oracle: float
    held_out: float


class Run(NamedTuple):
    """Results of one seed."""

    curves: dict[str, list[Point]]  # by method
    seconds: dict[str, float]  # by method
    tempered: list[Point]  # maximum likelihood, by temperature
    oracle: Point


class Policy(nn.Module):
    """G(y_t | y_<t), an LSTM; the start of a sequence is the extra word number n_words."""

    def __init__(self, n_words: int = WORDS, units: int = UNITS) -> None:
        super().__init__()
        self.n_words = n_words
        self.embedding = nn.Embedding(n_words + 1, units)
        self.cell = nn.LSTMCell(units, units)
        self.output = nn.Linear(units, n_words)

    def read(self, sequences: Tensor) -> tuple[Tensor, Tensor]:
        """States (length, n, units) before each word of sequences (n, length)."""
        start = torch.full_like(sequences[:, :1], self.n_words)
        inputs = self.embedding(torch.cat([start, sequences[:, :-1]], 1))
        states: list[tuple[Tensor, Tensor]] = []
        for word in inputs.unbind(1):
            states.append(self.cell(word, states[-1] if states else None))
        hidden, memory = zip(*states, strict=True)
        return torch.stack(hidden), torch.stack(memory)

    def forward(self, sequences: Tensor) -> Tensor:
        """Logits (n, length, n_words) of each word given the words before it."""
        return self.output(self.read(sequences)[0]).transpose(0, 1)

    def nll(self, sequences: Tensor, temperature: float = 1.0) -> Tensor:
        """Mean −log G, in nats per word."""
        logits = self(sequences) / temperature
        return cross_entropy(logits.flatten(0, 1), sequences.flatten())

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator, temperature: float = 1.0) -> Tensor:
        """Draw sequences (n, LENGTH)."""
        word, state, words = torch.full((n,), self.n_words), None, []
        for _ in range(LENGTH):
            state = self.cell(self.embedding(word), state)
            word = gumbel_max(self.output(state[0]) / temperature, generator)
            words.append(word)
        return torch.stack(words, 1)

    @torch.no_grad()
    def rollouts(self, sequences: Tensor, actions: Tensor, generator: torch.Generator) -> Tensor:
        """Complete prefixes of sequences (n, length) with actions (k, n, length).

        Returns sequences (k, n, length, length): [j, i, t] starts with the words before t of
        sequence i, continues with action [j, i, t], and the policy draws the rest.
        """
        k, n, length = actions.shape
        # All states side by side, time first: each step continues the rollouts of earlier times.
        hidden, memory = (state.repeat(1, k, 1) for state in self.read(sequences))
        whole = sequences.repeat(length, k, 1)
        times = torch.arange(length)
        whole[times, :, times] = actions.flatten(0, 1).T
        for t in range(1, length):
            words = self.embedding(whole[:t, :, t - 1].flatten())
            state = self.cell(words, (hidden[:t].flatten(0, 1), memory[:t].flatten(0, 1)))
            hidden[:t], memory[:t] = (s.view(t, k * n, -1) for s in state)
            whole[:t, :, t] = gumbel_max(self.output(hidden[:t]), generator)
        return whole.view(length, k, n, length).permute(1, 2, 0, 3)

    def loss(self, sequences: Tensor, reward: Reward, generator: torch.Generator) -> Tensor:
        """Surrogate (n, length) whose gradient estimates −Σ_a Q(s, a) ∇G(a|s) in each state s.

        Summed over words and averaged over sequences of the policy, the gradient is −∇E D(Y).
        """

        def minus_q(chosen: Tensor) -> Tensor:
            # At the last word every rollout is the sequence itself, and Q is D.
            actions = chosen.argmax(-1)
            whole = self.rollouts(sequences, actions.repeat(ROLLOUTS, 1, 1), generator)
            return -reward(whole).view(ROLLOUTS, *actions.shape).mean(0)

        choice = Categorical(self(sequences))
        return LeaveOneOutReinforce()(minus_q, choice, ACTIONS, generator)


class Discriminator(nn.Module):
    """logit D(y) = b + Σ_t (u_{y_t}·h_t + c_{y_t}), where h_t is the state of an LSTM after y_<t.

    The optimal D has the logit log p(y) − log G(y), also a sum over words given their prefixes.
    """

    def __init__(self, n_words: int = WORDS, units: int = 2 * UNITS) -> None:
        super().__init__()
        self.reader = Policy(n_words, units)
        nn.init.normal_(self.reader.output.weight, std=0.01)
        self.dropout = nn.Dropout(0.2)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, sequences: Tensor) -> Tensor:
        hidden = self.dropout(self.reader.read(sequences)[0]).transpose(0, 1)
        last = self.reader.output
        scores = (hidden * last.weight[sequences]).sum(-1) + last.bias[sequences]
        return scores.sum(-1) + self.bias

    @torch.no_grad()
    def reward(self, sequences: Tensor) -> Tensor:
        """D(y), the probability that y is real, without dropout, for any leading shape."""
        self.eval()
        probability = torch.sigmoid(self(sequences.flatten(0, -2)))
        self.train()
        return probability.view(sequences.shape[:-1])


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, rate: float) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.param_groups[0]["lr"] = rate
    optimizer.step()


def compare(seed: int, sizes: Sizes) -> Run:
    """Train both methods from one seed."""
    oracle = Policy().requires_grad_(False)
    torch.manual_seed(0)  # the same oracle for all seeds
    for parameter in oracle.parameters():
        nn.init.normal_(parameter)
    torch.manual_seed(seed + 1)
    generator = torch.Generator().manual_seed(seed + 1)
    real = oracle.sample(sizes.train, generator)
    held_out = oracle.sample(sizes.evaluated, generator)

    @torch.no_grad()
    def evaluate(policy: Policy, cost: int, temperature: float = 1.0) -> Point:
        # A separate generator: evaluations do not affect training and share their noise.
        separate = torch.Generator().manual_seed(1000 + seed)
        samples = policy.sample(sizes.evaluated, separate, temperature)
        return Point(cost, float(oracle.nll(samples)), float(policy.nll(held_out, temperature)))

    def batch() -> Tensor:
        return real[torch.randint(len(real), (BATCH,), generator=generator)]

    policy = Policy()
    adam = torch.optim.Adam(policy.parameters())
    for _ in range(sizes.pretraining):
        descend(adam, policy.nll(batch()), ML_RATE)
    curves = {name: [evaluate(policy, 0)] for name in (ML, GAN)}
    seconds = dict.fromkeys(curves, 0.0)

    warm_up = sizes.warm_up * D_COST
    budget = warm_up + sizes.rounds * ROUND_COST
    ml_policy = copy.deepcopy(policy)
    adam = torch.optim.Adam(ml_policy.parameters())
    for step in range(1, budget + 1):
        start = time.perf_counter()
        descend(adam, ml_policy.nll(batch()), ML_RATE * (1 - step / budget))
        seconds[ML] += time.perf_counter() - start
        if step * EVALUATIONS // budget > (step - 1) * EVALUATIONS // budget:
            curves[ML].append(evaluate(ml_policy, step))

    discriminator = Discriminator()
    adam, d_adam = (torch.optim.Adam(net.parameters()) for net in (policy, discriminator))
    truth = torch.cat([torch.ones(BATCH), torch.zeros(BATCH)])
    for step in range(sizes.rounds + 1):
        start = time.perf_counter()
        if step > 0:
            loss = policy.loss(policy.sample(BATCH, generator), discriminator.reward, generator)
            descend(adam, loss.sum(1).mean(), G_RATE * (1 - step / sizes.rounds))
        for _ in range(D_STEPS if step > 0 else sizes.warm_up):
            logits = discriminator(torch.cat([batch(), policy.sample(BATCH, generator)]))
            descend(d_adam, binary_cross_entropy_with_logits(logits, truth), D_RATE)
        seconds[GAN] += time.perf_counter() - start
        if step * EVALUATIONS // sizes.rounds > (step - 1) * EVALUATIONS // sizes.rounds:
            curves[GAN].append(evaluate(policy, warm_up + step * ROUND_COST))
    tempered = [evaluate(ml_policy, budget, temperature) for temperature in TEMPERATURES]
    return Run(curves, seconds, tempered, evaluate(oracle, 0))


def differences(runs: list[Run]) -> list[str]:
    """Adversarial minus maximum likelihood, paired by seed, with confidence intervals."""
    lines = []
    for field in ("oracle", "held_out"):
        ends = [[getattr(run.curves[name][-1], field) for run in runs] for name in (GAN, ML)]
        low, high = stats.ttest_rel(*ends).confidence_interval(0.95)
        verdict = "lower" if high < 0 else "higher" if low > 0 else "no significant difference"
        name = f"{field.replace('_', '-')} NLL, adversarial − likelihood"
        lines.append(f"{name}: {(low + high) / 2:+.3f} ({low:+.3f} to {high:+.3f}), {verdict}")
    return lines


def report(runs: list[Run], sizes: Sizes, path: Path) -> None:
    steps = runs[0].curves[ML][-1].cost
    console.print(
        f"\n{sizes.train:,} sequences; {sizes.pretraining:,} steps for both, then {steps:,} steps "
        f"of likelihood or {sizes.rounds} rounds\nmean ± standard deviation of {len(runs)} seeds\n"
    )
    table = Table("generator", "oracle NLL", "held-out NLL", "seconds", box=None, pad_edge=False)

    def add(name: str, points: list[Point], seconds: str = "") -> None:
        values = torch.tensor(points, dtype=torch.float64)[:, 1:]
        cells = (f"{m:.3f} ± {s:.3f}" for m, s in zip(values.mean(0), values.std(0), strict=True))
        table.add_row(name, *cells, seconds)

    add("both at the start", [run.curves[ML][0] for run in runs])
    for name in (ML, GAN):
        seconds = sum(run.seconds[name] for run in runs) / len(runs)
        add(name, [run.curves[name][-1] for run in runs], f"{seconds:.1f}")
    add(f"{ML}, temperature {TEMPERATURES[2]}", [run.tempered[2] for run in runs])
    add("the oracle itself", [run.oracle for run in runs])
    console.print(table)
    console.print("\n" + "\n".join(differences(runs)) + " (95%)")
    draw(runs, path)
    console.print(f"\npicture: {path}")


def draw(runs: list[Run], path: Path) -> None:
    """Left: oracle NLL by cost. Right: both NLLs at the end, and by temperature."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.2), dpi=200, layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in (ML, GAN):
        # (seeds, evaluations, fields of a point)
        curves = torch.tensor([run.curves[name] for run in runs], dtype=torch.float64)
        cost, mean, sd = curves[0, :, 0], curves[:, :, 1].mean(0), curves[:, :, 1].std(0)
        left.plot(cost, mean, color=COLORS[name], linewidth=1.4, label=name)
        left.fill_between(cost, mean - sd, mean + sd, color=COLORS[name], alpha=0.2, linewidth=0)
        right.scatter(*curves[:, -1, 1:].T, s=14, color=COLORS[name])
    tempered = torch.tensor([run.tempered for run in runs], dtype=torch.float64).mean(0)
    label = f"{ML}, temperature 1 to {TEMPERATURES[-1]}"
    right.plot(*tempered[:, 1:].T, ":", marker="|", color=COLORS[ML], label=label)
    left.set_title("oracle NLL, nats per word (band: ± 1 sd)", loc="left", fontsize=9)
    left.set_xlabel("budget spent, in steps of maximum likelihood", fontsize=8)
    right.set_title("held-out NLL against oracle NLL, per seed", loc="left", fontsize=9)
    right.set_xlabel("oracle NLL (lower: more likely sequences)", fontsize=8)
    right.set_ylabel("held-out NLL (lower: better coverage)", fontsize=8)
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#DDDDDD", linewidth=0.6)
        axes.tick_params(labelsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two seeds of a smaller version")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder for the picture")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    # The steps are so small that torch's threads would spend most of their time waiting.
    torch.set_num_threads(1)
    started = time.perf_counter()
    runs = []
    for seed in range(sizes.seeds):
        runs.append(compare(seed, sizes))
        console.print(f"seed {seed}: {time.perf_counter() - started:.0f} s so far")
    report(runs, sizes, options.out / "sequence_gan.png")


if __name__ == "__main__":
    main()
