"""The training loop: schedules, stopping, what it records and what it prints."""

from __future__ import annotations

import io
import sys
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from extremax import ExtremeClassifier
from extremax.data.synthetic import clustered
from extremax.errors import DivergedError
from extremax.heads import LinearHead
from extremax.objectives import NegativeSampling, Objective, OneVsEach, Pairs
from extremax.recipes import choose
from extremax.rows import DenseRows, Sizes
from extremax.training import loop
from extremax.training.holdout import holdout

X, Y = clustered(3000, 40, 10, seed=0)


def small(**parameters: Any) -> ExtremeClassifier:
    return ExtremeClassifier(
        **{"epochs": 3, "n_negatives": 5, "n_jobs": 1, "random_state": 0} | parameters
    )


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every step that the head is told to take."""
    seen: list[dict[str, Any]] = []
    take = LinearHead.logistic_steps

    def noted(self: Any, inputs: Any, classes: Any, *others: Any) -> Any:
        size, rates = others[-2:]
        for i, rate in enumerate(rates):
            part = slice(i * size, (i + 1) * size)
            rows = inputs.rows[part].copy()
            seen.append({"rate": rate, "rows": rows, "classes": classes[part].clone()})
        return take(self, inputs, classes, *others)

    monkeypatch.setattr(LinearHead, "logistic_steps", noted)
    return seen


def default_batch_size(n_rows: int, objective: Objective) -> int:
    sizes = Sizes(n_rows, 10, 40, 10.0)
    return choose(DenseRows, sizes, objective, None, None, None).batch_size(n_rows)


def test_the_linear_schedule_falls_evenly_to_zero(steps: list[dict[str, Any]]) -> None:
    small(learning_rate=0.4, batch_size=100, validation_fraction=0.0).fit(X, Y)
    rates = [step["rate"] for step in steps]
    assert len(rates) == 3 * 30
    # From the whole rate by equal steps; the one after the last would be zero.
    np.testing.assert_allclose(rates, 0.4 * (1 - np.arange(90) / 90), atol=1e-12)


def test_the_constant_schedule_stays(steps: list[dict[str, Any]]) -> None:
    small(learning_rate=0.4, schedule="constant").fit(X, Y)
    assert {step["rate"] for step in steps} == {0.4}


def test_an_epoch_visits_every_training_row_once(steps: list[dict[str, Any]]) -> None:
    small(batch_size=70, n_negatives=4).fit(X, Y)
    train, held_out = holdout(Y, 0.1, seed=0)
    an_epoch = -(-len(train) // 70)
    assert len(steps) == 3 * an_epoch
    orders = []
    for epoch in range(3):
        part = steps[epoch * an_epoch : (epoch + 1) * an_epoch]
        rows = np.concatenate([step["rows"] for step in part])
        assert np.array_equal(np.sort(rows), train)
        assert not np.isin(rows, held_out).any()
        orders.append(rows)
        for step in part:
            assert step["classes"].shape == (len(step["rows"]), 5)
            assert np.array_equal(step["classes"][:, 0].numpy(), Y[step["rows"]])
    assert not np.array_equal(orders[0], orders[1])


def test_batches_grow_with_the_data() -> None:
    for objective, most in ((NegativeSampling(), 512), (OneVsEach(), 4096)):
        sizes = [default_batch_size(n, objective) for n in (10, 10_000, 10**9)]
        assert sizes == [32, 100, most]


def test_history_tells_the_surrogate_from_the_held_out_figures() -> None:
    model = small(epochs=4, patience=4).fit(X, Y)
    assert [record["epoch"] for record in model.history_] == [1, 2, 3, 4]
    assert model.n_iter_ == 4
    for record in model.history_:
        assert record.keys() == {
            "epoch", "seconds", "examples", "surrogate_loss", "log_likelihood", "accuracy"
        }  # fmt: skip
    # Without a score of its own a pair costs log 2: two sums of it, and learning lowers them.
    losses = [record["surrogate_loss"] for record in model.history_]
    assert losses[0] < 2 * np.log(2)
    assert losses[-1] < losses[0]
    held_out = holdout(Y, 0.1, seed=0)[1]
    last, evaluation = model.history_[-1], model.evaluate(X[held_out], Y[held_out])
    assert last["log_likelihood"] == pytest.approx(evaluation.log_likelihood, rel=1e-5)
    assert last["accuracy"] == pytest.approx(evaluation.accuracy)
    assert model.history_[0]["log_likelihood"] > -np.log(40)


def test_without_held_out_rows_there_are_no_held_out_figures() -> None:
    for model in (small(validation_fraction=0.0).fit(X, Y), small().fit(X[:300], Y[:300])):
        assert all("log_likelihood" not in record for record in model.history_)
        assert len(model.history_) == 3


def test_early_stopping_keeps_the_best_head() -> None:
    # From zero, and half the labels by chance: after some epochs it knows every row by heart.
    rng = np.random.default_rng(0)
    features = rng.standard_normal((600, 80)).astype(np.float32)
    labels = np.where(rng.random(600) < 0.5, features[:, :10].argmax(1), rng.integers(10, size=600))
    model = small(
        noise="uniform", start="zeros", epochs=60, patience=20, learning_rate=0.08,
        schedule="constant", validation_fraction=0.3,
    ).fit(features, labels)  # fmt: skip
    seen = [record["log_likelihood"] for record in model.history_]
    best = int(np.argmax(seen))
    assert best > 0
    assert len(seen) == best + 1 + 20 < 60
    assert seen[best] > seen[-1] + 0.02
    assert seen[best] > model.evaluations_[0]["log_likelihood"] + 0.02
    held_out = holdout(labels, 0.3, seed=0)[1]
    final = model.log_likelihood(features[held_out], labels[held_out])
    assert final == pytest.approx(seen[best], abs=1e-5)


def test_a_callback_sees_every_epoch_and_can_stop() -> None:
    records: list[dict[str, Any]] = []
    model = small(epochs=9).fit(X, Y, callback=records.append)
    assert records == model.history_
    stopped = small(epochs=9).fit(X, Y, callback=lambda record: record["epoch"] == 2)
    assert len(stopped.history_) == 2
    assert small(epochs=2).fit(X, Y, callback=lambda _: None).n_iter_ == 2


def test_a_callback_that_raises_ends_the_run() -> None:
    def impatient(_: dict[str, Any]) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        small().fit(X, Y, callback=impatient)


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances by a hundredth of a second each time it is read."""
    ticks = count()
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) / 100)
    monkeypatch.setattr("extremax.training.state.time", clock)


@pytest.mark.usefixtures("ticking")
def test_max_seconds_ends_the_run(
    steps: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extremax.heads.linear._PAIRS_AT_ONCE", 1)
    model = small(epochs=10**6, patience=10**6, max_seconds=5.0, learning_rate=1.0).fit(X, Y)
    # Each step reads the clock twice: to see whether there is time, and for its rate.
    assert 200 < len(steps) <= 250
    train = len(holdout(Y, 0.1, seed=0)[0])
    an_epoch = -(-train // default_batch_size(train, NegativeSampling()))
    assert len(model.history_) == -(-len(steps) // an_epoch)
    assert model.history_[-1]["seconds"] >= 5.0
    assert all(record["seconds"] < 5.0 for record in model.history_[:-1])
    assert np.isfinite(model.predict_log_proba(X[:5])).all()
    # The schedule follows the seconds, which end before the epochs do.
    rates = [step["rate"] for step in steps]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0.95
    assert 0 <= rates[-1] < 0.05


@pytest.mark.usefixtures("ticking")
def test_epochs_end_the_run_where_seconds_are_left(steps: list[dict[str, Any]]) -> None:
    model = small(max_seconds=10**6, learning_rate=1.0, patience=3).fit(X, Y)
    assert len(model.history_) == 3
    assert steps[-1]["rate"] < 0.05


class TestPrinting:
    @pytest.mark.parametrize("noise", ["tree", "uniform", "frequency"])
    def test_nothing_at_all(self, noise: str, capfd: pytest.CaptureFixture[str]) -> None:
        model = small(noise=noise).fit(X, Y)
        model.predict_topk(X)
        model.evaluate(X, Y)
        assert capfd.readouterr() == ("", "")

    def test_a_line_an_epoch_off_a_terminal(self, capfd: pytest.CaptureFixture[str]) -> None:
        model = small(verbose=1).fit(X, Y)
        out, err = capfd.readouterr()
        assert out == ""
        train = len(holdout(Y, 0.1, seed=0)[0])
        *phases, first, second, third, blending, calibrating = err.splitlines()
        assert phases == [
            "encoding the rows",
            "holding out rows",
            f"fitting TreeNoise to {train:,} examples",
            "starting the head",
        ]
        assert blending == "fitting the blend to held-out rows"
        assert calibrating == "calibrating on held-out rows"
        lines = [first, second, third]
        for number, (line, record) in enumerate(zip(lines, model.history_, strict=True), 1):
            assert line.startswith(f"epoch {number}/3 | ")
            assert f"surrogate loss {record['surrogate_loss']:.4f}" in line
            assert f"log-likelihood {record['log_likelihood']:.3f}" in line
            assert f"accuracy {record['accuracy']:.1%}" in line

    def test_no_held_out_figures_where_there_are_none(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        small(verbose=1, validation_fraction=0.0).fit(X, Y)
        assert "held out" not in capfd.readouterr().err

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_bar_on_a_terminal_that_is_taken_down(
        self, monkeypatch: pytest.MonkeyPatch, fails: bool
    ) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        def stop(record: dict[str, Any]) -> None:
            if fails:
                raise RuntimeError("enough")

        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        if fails:
            with pytest.raises(RuntimeError):
                small(verbose=1).fit(X, Y, callback=stop)
        else:
            small(verbose=1).fit(X, Y, callback=stop)
            assert "3/3" in terminal.getvalue()
            assert "held out" in terminal.getvalue()
        shown = terminal.getvalue()
        # However the run ends, the cursor is given back.
        assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l") >= 0


class Explodes(NegativeSampling):
    """Fine for some steps, then the loss is not a number."""

    left = 40

    def loss(self, pairs: Pairs) -> torch.Tensor:
        type(self).left -= 1
        loss = super().loss(pairs)
        return loss if self.left >= 0 else loss * torch.nan


def test_a_loss_that_is_not_finite_stops_at_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    run, heads = loop.Trainer.run, []

    def armed(self: loop.Trainer, *args: Any) -> Any:
        # Losses computed before the first step do not count.
        monkeypatch.setattr(Explodes, "left", 40)
        heads.append(self.model.head)
        return run(self, *args)

    monkeypatch.setattr(Explodes, "left", 10**6)
    monkeypatch.setattr(loop.Trainer, "run", armed)
    model = small(objective=Explodes(), batch_size=100, validation_fraction=0.0)
    # Thirty steps an epoch: the forty-first is step 11 of epoch 2.
    with pytest.raises(DivergedError, match=r"epoch 2, step 11 .*learning rate 0\.\d+.*cause"):
        model.fit(X, Y)
    # The weights of the step before are finite, and the model was not fitted.
    assert all(tensor.isfinite().all() for tensor in heads[0].state().values())
    assert not hasattr(model, "model_")


def test_held_out_figures_that_are_not_finite_stop_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take = LinearHead.logistic_steps

    def poisoned(self: LinearHead, *args: Any) -> Any:
        loss = take(self, *args)
        self.bias[3] = torch.inf
        return loss

    monkeypatch.setattr(LinearHead, "logistic_steps", poisoned)
    # One step an epoch: no later loss would notice.
    with pytest.raises(DivergedError, match="held-out log-likelihood is not finite at epoch 1"):
        small(batch_size=10_000).fit(X, Y)


def test_a_learning_rate_that_is_too_large_is_named_as_the_cause() -> None:
    with pytest.raises(DivergedError, match="likely cause is a learning_rate that is too large"):
        small(noise="uniform", learning_rate=1e30).fit(X, Y)
    model = small(noise="uniform", learning_rate=1e30, validation_fraction=0.0)
    with pytest.raises(DivergedError, match="likely cause is a learning_rate that is too large"):
        model.partial_fit(X, Y)
