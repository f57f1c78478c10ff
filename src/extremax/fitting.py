"""From data and parameters to a trained model: encode, choose, fit the noise, start, train,
calibrate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from extremax.ensemble import Ensemble
from extremax.errors import ModelFileError
from extremax.experts import Expert
from extremax.kernels.compilation import announced
from extremax.labels import concatenate_labels
from extremax.model import Model
from extremax.noise import Noise
from extremax.prediction.blend import Blend, is_product
from extremax.preparation import (
    Parameters,
    Prepared,
    calibrates,
    choose_for,
    device_for,
    fingerprint,
    settings_for,
    sizes_of,
)
from extremax.random import Purpose, Stream, member_seed, seed_from
from extremax.recipes import Choice
from extremax.rows import Sizes
from extremax.tensors import Tensors
from extremax.training.calibration import fit_blend, fit_temperature, temperature_rows
from extremax.training.checkpoint import Checkpoint, Saved
from extremax.training.class_weight import weigh_classes
from extremax.training.confidence import fit_confidence
from extremax.training.data import Examples
from extremax.training.later import Known, count_late, learning_rates, prior_of, with_rehearsal
from extremax.training.loop import Callback, Trainer
from extremax.training.marginals import fit_marginals
from extremax.training.penalized import Problem
from extremax.training.progress import Progress
from extremax.training.rest import fit_rest
from extremax.training.start import Start, start_late
from extremax.training.state import Clock, State
from extremax.training.validation import validate

# Bytes of scores of held-out rows, after training.
_CALIBRATION_BYTES = 2**27


@dataclass
class Fitted:
    """A trained model, and how it was trained.

    history:         one record per epoch.
    evaluations:     held-out figures at other times: at the start, and between epochs if asked.
    n_partial_fits:  passes of `partial_fit`.
    validation:      held-out figures of the model as it is (`extremax.training.validation`).
    """

    model: Model
    seed: int
    history: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    n_partial_fits: int = 0
    validation: dict[str, Any] | None = None


def fit(
    parameters: Parameters,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    checkpoint: str | Path | None = None,
    callback: Callback | None = None,
    evaluate_within_epochs: bool = False,
    on_start: Callable[[Fitted], None] | None = None,
    label_texts: Any = None,
    progress: Progress | None = None,
) -> Fitted:
    """Train a model from scratch, or resume from a checkpoint of the same run.

    on_start:  called before the first step of each member with what it will be, so that a callback
               can ask the model while it trains, and with the ensemble of several members.
    """
    budget, progress = calibration_budget(parameters), progress or Progress()
    with announced(progress.note), Checkpoint(checkpoint) as file:
        seed = file.seed() if parameters.random_state is None else None
        seed = seed_from(parameters.random_state) if seed is None else seed
        progress.phase("encoding the rows")
        data = Prepared.of(parameters, X, y, sample_weight, None, seed, label_texts)
        progress.phase("holding out rows")
        train, held_out = data.holdout(parameters.validation_fraction, seed)
        run = Run(
            parameters, data, train, held_out, callback, evaluate_within_epochs, on_start, progress
        )
        members = [run.member(0, seed, file)]
        for number in range(1, parameters.n_models):
            with file.member(number) as own:
                experts = members[0].model.experts
                members.append(run.member(number, member_seed(seed, number), own, experts))
    progress.phase("calibrating on held-out rows")
    model = Ensemble.of([member.model for member in members])
    if calibrates(parameters, data.choice):
        model.confidence = fit_confidence(model, data.examples, train, held_out, budget)
    model.marginals = fit_marginals(model, data.examples, train, held_out, budget)
    fitted = members[0]
    if len(members) > 1:
        fitted = Fitted(model, seed, *joined_records(members))
    fitted.validation = validate(model, data.examples, train, held_out)
    for expert in model.experts:
        expert.learn(data.examples.rows[held_out], data.examples.labels[held_out], model.n_classes)
    if run.on_all_rows is not None:
        run.on_all_rows()
    if len(members) > 1 and on_start is not None:
        on_start(fitted)
    return fitted


def calibration_budget(parameters: Parameters) -> int:
    """Bytes that scores of held-out rows may take: what is asked of them must not need more memory
    than training did."""
    return min(parameters.memory_budget, _CALIBRATION_BYTES)


@dataclass
class Run:
    """What the members of one fit share."""

    parameters: Parameters
    data: Prepared
    train: np.ndarray
    held_out: np.ndarray
    callback: Callback | None
    evaluate_within_epochs: bool
    on_start: Callable[[Fitted], None] | None
    progress: Progress
    #: Trains the head on held-out rows, too, once nothing is asked of them any more.
    on_all_rows: Callable[[], None] | None = None

    def member(
        self, number: int, seed: int, file: Checkpoint, experts: tuple[Expert, ...] | None = None
    ) -> Fitted:
        """Train one model and calibrate it.

        experts:  those of the first member, which all share.
        """
        parameters, data, train, held_out = self.parameters, self.data, self.train, self.held_out
        examples, objective = data.examples, data.choice.objective
        noise, scale = data.noise_of(number, seed), examples.rows.unit_scale()
        progress = self.progress
        if parameters.n_models > 1:
            progress.note(f"model {number + 1} of {parameters.n_models}")
        saved = file.load(fingerprint(parameters, data, scale, seed))
        clock = Clock(0.0)
        if saved is None:
            if objective.samples:
                progress.phase(f"fitting {type(noise).__name__} to {len(train):,} examples")
            noise.fit(examples.rows, examples.labels, len(data.labels), train)
        else:
            _check_saved(saved, data, noise, file)
            noise.load_state(saved.noise)
        progress.phase("starting the head")
        model = data.model(parameters, noise, train, scale, seed, experts)
        if data.choice.is_solved:
            return self._solved(model, seed, progress)
        settings = settings_for(parameters, data.choice, len(train))
        device = device_for(parameters, data.choice, data.sizes)
        if objective.samples:
            examples.keep_context(noise)
        if saved is None:
            start = Start(model, examples, train, held_out, settings.n_negatives, seed)
            data.choice.start(start)
            state, per_example = State(seconds=clock.seconds), None
        else:
            model.head.load_state(saved.head)
            state, per_example = State(**saved.state), saved.per_example
            progress.note(f"resuming from {file.path}, epoch {state.epoch + 1}")
            del saved
        model.attach()
        model.on(device)
        trainer = Trainer(
            model=model,
            examples=examples,
            settings=settings,
            seed=seed,
            progress=progress,
            checkpoint=file,
            callback=self.callback,
            state=state,
            per_example=per_example,
            evaluate_within_epochs=self.evaluate_within_epochs,
        )
        fitted = Fitted(model, seed, state.history, state.evaluations)
        if self.on_start is not None:
            self.on_start(fitted)
        trainer.run(train, held_out)
        if device is not None:
            model.attach()  # Its noise has followed nothing of what happened on the device.
        progress.phase("fitting the blend to held-out rows")
        model.blend = self._calibrated(model)
        model.rest = fit_rest(model, examples.rows, held_out, calibration_budget(parameters))
        return fitted

    def _solved(self, model: Model, seed: int, progress: Progress) -> Fitted:
        """The optimum of penalized softmax, with the penalty that held-out rows prefer."""
        examples, train, held_out = self.data.examples, self.train, self.held_out
        fitted = Fitted(model, seed, [], [])
        if self.on_start is not None:
            self.on_start(fitted)
        progress.phase(f"solving for the weights of {len(train):,} examples")
        problem, clock = Problem(examples, model.n_classes), Clock(0.0)
        trials = []
        for trial in problem.choose_strength(train, held_out):
            trials.append(trial)
            record = {
                "epoch": len(trials),
                "seconds": clock.seconds,
                "examples": len(trials) * len(train),
                "surrogate_loss": trial.loss,
                "penalty": 1.0 / trial.strength,
            }
            if trial.is_known:
                record |= {"log_likelihood": trial.log_likelihood, "accuracy": trial.accuracy}
            fitted.history.append(record)
            with clock.stopped():
                if self.callback is not None and self.callback(record):
                    break
        best = max(trials, key=lambda trial: trial.log_likelihood)
        solved, _ = problem.solve(train, best.strength, None)
        problem.write(solved, model.head)
        model.attach()
        model.blend = self._calibrated(model)
        if len(held_out):
            # Held-out rows have had their say, and may train.
            self.on_all_rows = lambda: problem.write(
                problem.solve(examples.weighted, best.strength, solved)[0], model.head
            )
        return fitted

    def _calibrated(self, model: Model) -> Blend:
        """The blend that held-out rows suggest, where there are any."""
        examples, held_out, parameters = self.data.examples, self.held_out, self.parameters
        if not len(held_out) or not calibrates(parameters, self.data.choice):
            return model.blend
        rows, labels, weights = examples.rows, examples.labels, examples.weights_of(held_out)
        if model.experts or is_product(model.objective, model.noise):
            counts = np.bincount(labels[self.train], minlength=model.n_classes)
            return fit_blend(model, rows, labels, held_out, counts, weights)
        most, budget = temperature_rows(model.n_classes), calibration_budget(parameters)
        temperature = fit_temperature(model, rows, labels, budget, held_out[:most], weights[:most])
        return replace(model.blend, temperature=temperature)


def joined_records(members: list[Fitted]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """History and evaluations of several members in one: every record says of which model it is,
    and its seconds and examples are those of the whole run."""
    history: list[dict[str, Any]] = []
    evaluations: list[dict[str, Any]] = []
    before = {"seconds": 0.0, "examples": 0}
    for number, member in enumerate(members):
        for records, of_member in (
            (history, member.history),
            (evaluations, member.evaluations),
        ):
            for record in of_member:
                so_far = {key: before[key] + record[key] for key in before if key in record}
                records.append(record | so_far | {"model": number})
        before = {key: history[-1][key] for key in before}
    return history, evaluations


def _check_saved(saved: Saved, data: Prepared, noise: Noise, file: Checkpoint) -> None:
    """Refuse a checkpoint whose tensors are not those of this run, before a kernel sees them."""
    n_classes, n_features = len(data.labels), data.examples.rows.n_features
    objective, head = data.choice.objective, data.choice.head
    try:
        noise.validate(Tensors(saved.noise, type(noise).__name__), n_classes, n_features)
        head.validate(Tensors(saved.head, head.__name__), n_classes, n_features)
        if saved.per_example is not None:
            values = Tensors({"values": saved.per_example}, "values per example")
            shape = len(data.examples), objective.per_example_size
            values.array("values", torch.float32, *shape)
    except ModelFileError as error:
        raise ModelFileError(
            f"{file.path} is damaged: {error}; remove it or choose another checkpoint folder"
        ) from error


def partial_fit(
    parameters: Parameters,
    fitted: Fitted | None,
    X: Any,
    y: Any,
    classes: Any = None,
    sample_weight: Any = None,
) -> Fitted:
    """One pass over these rows at a constant learning rate; more where many of them have a class
    never seen before (`extremax.training.later`)."""
    if fitted is None:
        seed = seed_from(parameters.random_state)
        data = Prepared.of(parameters, X, y, sample_weight, classes, seed, partly=True)
        examples, choice, train = data.examples, data.choice, data.examples.weighted
        # A tree would give classes without a row next to no probability: they join it later.
        n_classes = int(examples.labels.max()) + 1
        members: list[Model] = []
        for number in range(parameters.n_models):
            own = member_seed(seed, number)
            noise = data.noise_of(number, own)
            noise.fit(examples.rows, examples.labels, n_classes, train)
            noise.extend(len(data.labels))
            experts, scale = members[0].experts if members else None, examples.rows.unit_scale()
            members.append(data.model(parameters, noise, train, scale, own, experts))
        model = Ensemble.of(members)
        is_fresh = np.zeros(len(data.labels), bool)
    else:
        seed, model = fitted.seed, fitted.model
        examples, choice, is_fresh = _taken_in(parameters, fitted, X, y, classes, sample_weight)
    settings = settings_for(parameters, choice, len(examples))
    device = device_for(parameters, choice, sizes_of(examples, model.n_classes))
    is_new, fitted = fitted is None, fitted or Fitted(model, seed, [], [])
    n_before, passes = fitted.n_partial_fits, learning_rates(model, settings, examples, is_fresh)
    for member_number, member in enumerate(model.members):
        own = member_seed(seed, member_number)
        if member.objective.samples:
            examples.keep_context(member.noise)
        if is_new:
            choice.start(Start(member, examples, train, train[:0], settings.n_negatives, own))
        with prior_of(member, examples.labels):
            member.attach()
            member.on(device)
            trainer = Trainer(member, examples, settings, own, state=State(epoch=n_before))
            for number, rates in enumerate(passes, n_before):
                random = np.random.default_rng((own, Purpose.PARTIAL_FIT, number))
                order = random.permutation(len(examples))
                key = Stream.of(own, Purpose.PARTIAL_FIT, number, rows=order).key
                trainer.train(order, key, rates)
                trainer.state.end_epoch()
            member.fetch()
            member.on(None)
    # Biases have changed back.
    model.attach()
    return replace(fitted, n_partial_fits=n_before + len(passes), validation=None)


def _taken_in(
    parameters: Parameters, fitted: Fitted, X: Any, y: Any, classes: Any, sample_weight: Any
) -> tuple[Examples, Choice, np.ndarray]:
    """Further examples to train a model on, which has counted them and has room for their classes;
    the recipe; and whether each class was never seen before."""
    model = fitted.model
    rows = model.encoder.transform(X)
    # Wrong names are refused before the model grows.
    sizes = Sizes(len(rows), rows.n_features, len(model.labels), rows.nonzeros)
    choice = choose_for(parameters, type(rows), sizes, partly=True)
    choice = choice._replace(objective=model.objective, noise=model.noise)
    examples = Examples.pair(rows, y, sample_weight)
    weigh_classes(examples, parameters.class_weight, partly=True)
    new = concatenate_labels(examples.labels, *model.encoder.named_items(X))
    if model.labels.extend(new, classes):
        model.grow()
        if model.encoder.items_ is not None:  # Items without a number have one now.
            rows = model.encoder.transform(X)
            examples.rows = rows if examples.owner is None else rows[examples.owner]
    examples.labels = model.labels.encode(examples.labels)
    is_fresh = model.labels.counts == 0
    count_late(model, examples.labels, len(rows))
    for member in model.members:
        start_late(choice.start, member, is_fresh)
    known = Known.of(model) if model.labels.is_late[examples.labels].any() else None
    for expert in model.experts:
        expert.learn(examples.rows, examples.labels, model.n_classes)
    if known is not None:
        labels = np.concatenate([known.labels, examples.labels])
        rows = known.rows.joined(examples.rows)
        for member in model.members:
            member.noise.learn_late(rows, labels)
        random = np.random.default_rng((fitted.seed, Purpose.REHEARSAL, fitted.n_partial_fits))
        examples = with_rehearsal(examples, known, model, random)
    return examples, choice, is_fresh
