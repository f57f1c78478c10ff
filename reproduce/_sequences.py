"""Generators and discriminators of sequences, shared by `sequence_gan.py` and its tests.

Words are discrete, so no gradient flows from the discriminator D to the generator G. Instead G is a
policy (Yu et al. 2017, SeqGAN):

    ∇E R(Y) = Σ_t E[Σ_a Q(y_<t, a) ∇G(a|y_<t)],   Q(s, a) = mean of R over rollouts from s, a.

The inner sum is a gradient through one categorical variable, which `extremax.discrete` estimates.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import logsigmoid

from extremax.discrete import Categorical, Estimator, Exact, gumbel_max

Reward = Callable[[Tensor], Tensor]


class Policy(nn.Module):
    """G(y_t | y_<t), an LSTM; the start of a sequence is the extra word number n_words."""

    def __init__(self, n_words: int, units: int) -> None:
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

    def log_prob(self, sequences: Tensor, temperature: float = 1.0) -> Tensor:
        """log G of each word of sequences (n, length), in that shape."""
        log_p = (self(sequences) / temperature).log_softmax(-1)
        return log_p.gather(-1, sequences[..., None]).squeeze(-1)

    @torch.no_grad()
    def sample(self, n: int, length: int, generator: Generator, temperature: float = 1.0) -> Tensor:
        """Draw sequences (n, length)."""
        word, state, words = torch.full((n,), self.n_words), None, []
        for _ in range(length):
            state = self.cell(self.embedding(word), state)
            word = gumbel_max(self.output(state[0]) / temperature, generator)
            words.append(word)
        return torch.stack(words, 1)

    @torch.no_grad()
    def rollouts(self, sequences: Tensor, actions: Tensor, generator: Generator) -> Tensor:
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

    def rollout_loss(
        self,
        sequences: Tensor,
        reward: Reward,
        estimator: Estimator,
        n_actions: int,
        n_rollouts: int,
        generator: Generator,
    ) -> Tensor:
        """Surrogate (n, length) whose gradient estimates −Σ_a Q(s, a) ∇G(a|s) in each state s.

        Summed over words and averaged over sequences of the policy, the gradient is −∇E R(Y).
        """

        def minus_q(chosen: Tensor) -> Tensor:
            # At the last word every rollout is the sequence itself, and Q is R. One rollout at a
            # time: larger tensors no longer fit the caches of a core.
            actions, total = chosen.argmax(-1), torch.zeros(chosen.shape[:-1], dtype=chosen.dtype)
            for _ in range(n_rollouts):
                whole = self.rollouts(sequences, actions, generator)
                total -= reward(whole.flatten(0, -2)).view(actions.shape)
            return total / n_rollouts

        return estimator(minus_q, Categorical(self(sequences)), n_actions, generator)

    def word_loss(self, sequences: Tensor, scores: Tensor) -> Tensor:
        """−Σ_a G(a|s) r(s, a) in each state, (n, length), by enumeration of the words.

        Unlike `rollout_loss` this leaves out how a word changes the words after it.

        scores:  r, (n, length, n_words), without gradient.
        """
        return Exact()(lambda word: -(word * scores).sum(-1), Categorical(self(sequences)))


class Discriminator(nn.Module):
    """logit D(y) = Σ_t r(y_<t, y_t) with r(s, a) = u_a·h(s) + c_a, where h is the state of an LSTM.

    The optimal D has the logit log p(y) − log G(y), also a sum over words given their prefixes.
    """

    def __init__(self, n_words: int, units: int, dropout: float) -> None:
        super().__init__()
        self.reader = Policy(n_words, units)
        nn.init.normal_(self.reader.output.weight, std=0.01)
        nn.init.zeros_(self.reader.output.bias)
        self.dropout = nn.Dropout(dropout)

    def word_scores(self, sequences: Tensor) -> Tensor:
        """r of every word in each state of sequences (n, length): (n, length, n_words)."""
        hidden = self.dropout(self.reader.read(sequences)[0]).transpose(0, 1)
        return self.reader.output(hidden)

    def forward(self, sequences: Tensor) -> Tensor:
        """logit D of sequences (n, length)."""
        hidden = self.dropout(self.reader.read(sequences)[0]).transpose(0, 1)
        last = self.reader.output
        return ((hidden * last.weight[sequences]).sum(-1) + last.bias[sequences]).sum(-1)


class OptimalDiscriminator(nn.Module):
    """logit D(y) = log p(y) − log G(y), from the oracle p and the current G: nothing to learn."""

    def __init__(self, oracle: Policy, policy: Policy) -> None:
        super().__init__()
        self.oracle, self.policy = oracle, policy

    def word_scores(self, sequences: Tensor) -> Tensor:
        return self.oracle(sequences).log_softmax(-1) - self.policy(sequences).log_softmax(-1)

    def forward(self, sequences: Tensor) -> Tensor:
        difference = self.oracle.log_prob(sequences) - self.policy.log_prob(sequences)
        return difference.sum(-1)


def log_loss(logits_of_real: Tensor, logits_of_drawn: Tensor) -> Tensor:
    """−½ mean log D(real) − ½ mean log(1 − D(drawn)); log 2 for a D that knows nothing."""
    return -(logsigmoid(logits_of_real).mean() + logsigmoid(-logits_of_drawn).mean()) / 2
