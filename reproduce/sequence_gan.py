"""Does adversarial training of a sequence generator beat maximum likelihood?

The data come from a fixed random LSTM, the oracle, which also scores what is generated (Yu et al.
2017, SeqGAN). A generator G is first trained by maximum likelihood until the NLL of validation
sequences stops falling, and then against a discriminator D, by policy gradient.

Two numbers are read together: the oracle's NLL of generated sequences (quality) and the NLL that G
assigns to new sequences of the oracle (diversity: it is high where G misses something). A lower
temperature alone trades the second for the first, so the result of adversarial training is compared
with the generator of maximum likelihood at every temperature (Caccia et al. 2020, "Language GANs
Falling Short").

Both densities are known, so two more numbers are exact up to sampling: KL(G‖p) and the loss of the
optimal discriminator, log 2 minus the Jensen-Shannon divergence. The first says whether generated
sequences are good and diverse, the second what a discriminator could see at best.

    python reproduce/sequence_gan.py --output runs/gan --jobs 16
    python reproduce/sequence_gan.py --report runs/gan
"""

from __future__ import annotations

import copy
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _common import Cell, parser, read_results, run_cells
from _sequence_report import report
from _sequences import Discriminator, OptimalDiscriminator, Policy, log_loss
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor

from extremax.discrete import ESTIMATORS
from extremax.disk import replacing

BATCH, ACTIONS, PART = 64, 4, 2048
ML_RATE, D_RATE = 1e-2, 5e-3
EVALUATIONS = 6
TEMPERATURES = (1.05, 1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
SMALL, SAME = "small generator", "same size"


class Problem(NamedTuple):
    """Sizes: units of the LSTMs, numbers of sequences."""

    oracle: int
    generator: int
    train: int
    words: int = 50
    length: int = 20
    evaluated: int = 4000  # validation sequences, test sequences and generated ones, each
    check_every: int = 200  # steps of maximum likelihood between two looks at validation NLL


PROBLEMS = {
    # The oracle is in the generator's family, and has more structure than 10,000 sequences show.
    SAME: Problem(oracle=32, generator=32, train=10_000),
    # The generator is too small for the oracle; there is enough data to see what it misses.
    SMALL: Problem(oracle=8, generator=4, train=50_000),
    "quick": Problem(
        oracle=4, generator=2, train=500, words=8, length=5, evaluated=200, check_every=20
    ),
}


class Setting(NamedTuple):
    """Adversarial training; a cell names what differs from these values."""

    discriminator: str = "learned"  # or "optimal", from the oracle's own probabilities
    reward: str = "log-odds"  # of D, or "probability"
    rollouts: int = 4  # per action; 0: the reward of the word alone, by enumeration
    estimator: str = "reinforce_leave_one_out"
    warm_up: int = 1000  # steps of D before the first round
    d_steps: int = 3  # per round
    d_units: int = 32
    d_dropout: float = 0.0
    rate: float = 2e-3
    likelihood: float = 0.0  # weight of the NLL of real sequences in the loss
    batch: int = 32  # sequences per round
    rounds: int = 120


# What differs from `Setting`, the most telling first: a run may be stopped early.
PLAN: list[tuple[str, dict[str, Any]]] = [
    (SMALL, {"rollouts": 16}),
    (SMALL, {}),
    (SMALL, {"discriminator": "optimal"}),
    (SAME, {}),
    (SAME, {"discriminator": "optimal"}),
    (SAME, {"warm_up": 5000, "d_units": 64, "d_dropout": 0.2}),
    (SMALL, {"reward": "probability"}),
    (SMALL, {"warm_up": 5000}),
    (SMALL, {"rollouts": 0, "warm_up": 5000, "batch": 64, "rate": 1e-3, "rounds": 600}),
    (SMALL, {"likelihood": 1.0}),
    (SMALL, {"discriminator": "optimal", "likelihood": 1.0}),
    *((SMALL, {"rollouts": n}) for n in (0, 1)),
    *((SMALL, {"rate": rate}) for rate in (5e-4, 4e-3)),
    *((SMALL, {"estimator": name}) for name in ("reinforce", "reinforce_running_mean")),
    (SMALL, {"d_units": 64}),
    (SMALL, {"d_dropout": 0.2}),
    (SMALL, {"warm_up": 50}),
]
QUICK_PLAN: list[tuple[str, dict[str, Any]]] = [
    ("quick", {"warm_up": 5, "rounds": 2, "rollouts": n, "discriminator": d, "likelihood": w})
    for n, d, w in ((1, "learned", 0.0), (2, "optimal", 1.0), (0, "learned", 0.0))
]


class World:
    """The oracle of a problem, and the sequences of a seed."""

    def __init__(self, problem: str, seed: int) -> None:
        torch.set_num_threads(1)
        self.sizes = sizes = PROBLEMS[problem]
        torch.manual_seed(0)  # the same oracle for all seeds
        self.oracle = Policy(sizes.words, sizes.oracle).requires_grad_(False)
        for parameter in self.oracle.parameters():
            torch.nn.init.normal_(parameter)
        torch.manual_seed(seed + 1)
        self.generator = Generator().manual_seed(seed + 1)
        self.seed = seed
        self.real, self.validation, self.test = (
            self.oracle.sample(n, sizes.length, self.generator)
            for n in (sizes.train, sizes.evaluated, sizes.evaluated)
        )

    def policy(self) -> Policy:
        return Policy(self.sizes.words, self.sizes.generator)

    def batch(self, n: int) -> Tensor:
        return self.real[torch.randint(len(self.real), (n,), generator=self.generator)]

    def draw(self, policy: Policy, n: int) -> Tensor:
        return policy.sample(n, self.sizes.length, self.generator)

    @torch.no_grad()
    def evaluate(self, policy: Policy, temperature: float = 1.0) -> dict[str, float]:
        """Figures in nats per word, and the loss of the optimal discriminator per sequence."""
        # A separate generator: evaluations do not affect training and share their noise.
        separate = Generator().manual_seed(1000 + self.seed)
        drawn = policy.sample(self.sizes.evaluated, self.sizes.length, separate, temperature)
        p_drawn, p_test = self.oracle.log_prob(drawn), self.oracle.log_prob(self.test)
        g_drawn = policy.log_prob(drawn, temperature)
        g_test = policy.log_prob(self.test, temperature)
        return {
            "temperature": temperature,
            "oracle": -float(p_drawn.mean()),
            "held_out": -float(g_test.mean()),
            "reverse_kl": float((g_drawn - p_drawn).mean()),
            "optimal_loss": float(log_loss((p_test - g_test).sum(1), (p_drawn - g_drawn).sum(1))),
        }


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def maximum_likelihood(world: World) -> tuple[Policy, list[tuple[int, float]]]:
    """The generator with the lowest validation NLL, and that NLL by step.

    The learning rate is divided by four at each look without progress; the third time ends the
    run.
    """
    policy = world.policy()
    adam = torch.optim.Adam(policy.parameters(), ML_RATE)
    best, kept, curve, step, failures = float("inf"), policy.state_dict(), [], 0, 0
    while failures < 3:
        for _ in range(world.sizes.check_every):
            descend(adam, -policy.log_prob(world.batch(2 * BATCH)).mean())
        step += world.sizes.check_every
        with torch.no_grad():
            nll = -float(policy.log_prob(world.validation).mean())
        curve.append((step, nll))
        if nll < best - 1e-4:
            best, kept = nll, copy.deepcopy(policy.state_dict())
        else:
            failures += 1
            adam.param_groups[0]["lr"] /= 4
    policy.load_state_dict(kept)
    return policy, curve


def adversarial(
    world: World, policy: Policy, setting: Setting
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Train the policy against D; return evaluations by round, and losses of D at the start."""
    learned = setting.discriminator == "learned"
    d: Discriminator | OptimalDiscriminator = (
        Discriminator(policy.n_words, setting.d_units, setting.d_dropout)
        if learned
        else OptimalDiscriminator(world.oracle, policy)
    )
    adam = torch.optim.Adam(policy.parameters(), setting.rate)
    d_adam = torch.optim.Adam(d.parameters(), D_RATE) if learned else None
    estimator = ESTIMATORS[setting.estimator]()

    def train_discriminator(drawn: Tensor) -> None:
        if d_adam is not None:
            together = torch.cat([world.batch(len(drawn)), drawn])
            descend(d_adam, log_loss(*d(together).chunk(2)))

    @torch.no_grad()
    def reward(sequences: Tensor) -> Tensor:
        logits = torch.cat([d(part) for part in sequences.split(PART)])
        return logits.sigmoid() if setting.reward == "probability" else logits

    def loss_of(drawn: Tensor) -> Tensor:
        if setting.rollouts == 0:
            with torch.no_grad():
                scores = d.word_scores(drawn)
            return policy.word_loss(drawn, scores)
        return policy.rollout_loss(
            drawn, reward, estimator, ACTIONS, setting.rollouts, world.generator
        )

    for _ in range(setting.warm_up if learned else 0):
        # New draws each time: D would learn a fixed set of them by heart.
        train_discriminator(world.draw(policy, BATCH))
    d.eval()
    with torch.no_grad():
        drawn = world.draw(policy, world.sizes.evaluated)
        losses = {
            "train": float(log_loss(d(world.real[: len(drawn)]), d(drawn))),
            "held_out": float(log_loss(d(world.test), d(drawn))),
        }
    curve = [world.evaluate(policy) | {"round": 0}]
    for step in range(1, setting.rounds + 1):
        d.eval()
        loss = loss_of(world.draw(policy, setting.batch)).sum(1).mean()
        if setting.likelihood:
            nll = -policy.log_prob(world.batch(setting.batch)).sum(1).mean()
            loss = loss + setting.likelihood * nll
        adam.param_groups[0]["lr"] = setting.rate * (1 - (step - 1) / setting.rounds)
        descend(adam, loss)
        d.train()
        for _ in range(setting.d_steps if learned else 0):
            train_discriminator(world.draw(policy, BATCH))
        if step * EVALUATIONS // setting.rounds > (step - 1) * EVALUATIONS // setting.rounds:
            curve.append(world.evaluate(policy) | {"round": step})
    return curve, losses


def work(cell: Cell, folder: Path) -> dict[str, Any]:
    """One run. The generator of maximum likelihood is stored, and adversarial runs start from it.

    cell:  "problem", "seed", "method", and for adversarial runs what differs from `Setting`.
    """
    change = dict(cell)
    problem, seed, method = (change.pop(key) for key in ("problem", "seed", "method"))
    start = folder / f"{problem.replace(' ', '-')}-{seed}.safetensors"
    if method == "maximum likelihood" or not start.exists():
        # Of adversarial runs, too, where only the results were kept.
        policy, curve = maximum_likelihood(World(problem, seed))
        with replacing(start) as temporary:
            save_file(policy.state_dict(), temporary)
    world = World(problem, seed)
    if method == "maximum likelihood":
        result: dict[str, Any] = {"curve": curve, "of_oracle": world.evaluate(world.oracle)}
    else:
        policy = world.policy()
        policy.load_state_dict(load_file(start))
        points, losses = adversarial(world, policy, Setting(**change))
        result = {"curve": points, "discriminator": losses}
    return result | {"tempered": [world.evaluate(policy, t) for t in TEMPERATURES]}


def cells(quick: bool, seeds: int) -> tuple[list[Cell], list[Cell]]:
    """(maximum likelihood, adversarial); all seeds of a setting follow each other."""
    plan = QUICK_PLAN if quick else PLAN
    problems = dict.fromkeys(problem for problem, _ in plan)
    first = [
        {"problem": problem, "seed": seed, "method": "maximum likelihood"}
        for problem in problems
        for seed in range(seeds)
    ]
    then = [
        {"problem": problem, "seed": seed, "method": "adversarial", **change}
        for problem, change in plan
        for seed in range(seeds)
    ]
    return first, then


def main(argv: list[str] | None = None) -> None:
    made = parser(__doc__.splitlines()[0])
    made.set_defaults(seeds=5)
    given = made.parse_args(argv)
    stages = cells(given.quick, given.seeds)
    if given.output:
        folder, file = given.output, given.output / "sequence_gan.jsonl"
        deadline = time.monotonic() + given.stop_after
        for stage in stages:
            run_cells(partial(work, folder=folder), stage, file, given.jobs, deadline)
    if given.report:
        records = list(read_results(given.report / "sequence_gan.jsonl").values())
        report(records, [*stages[0], *stages[1]], given.images)


if __name__ == "__main__":
    main()
