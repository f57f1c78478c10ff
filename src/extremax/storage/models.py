"""A model to a folder and back; no pickle inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from extremax._version import __version__
from extremax.ensemble import Ensemble
from extremax.errors import ModelFileError
from extremax.experts import EXPERTS
from extremax.features import Encoder
from extremax.heads import HEADS, Head, HeadOptions
from extremax.labels import ClassLabels
from extremax.labels.saving import plain_number
from extremax.memory import memory_errors
from extremax.model import Model
from extremax.noise import Noise, describe_noise, make_noise
from extremax.objectives import describe_objective, make_objective
from extremax.prediction import Blend, Confidence, Marginals, Rest
from extremax.storage.folder import model_folder
from extremax.tensors import Tensors

# Bytes that settings may ask for whatever the size of the files.
_ALWAYS_ALLOWED_BYTES = 2**28
_HEAD_NAMES = {kind: name for name, kind in HEADS.items()}
_EXPERT_NAMES = {kind: name for name, kind in EXPERTS.items()}
# Parts of a model with a file for each member of an ensemble.
_OWN = ("head", "noise")


def save_model(model: Model, path: str | Path, more: dict[str, Any]) -> None:
    """Write a model, Adagrad's state included, so that training can resume after `load_model`.

    more:  what else the manifest should hold, for JSON.
    """
    if type(model.head) not in _HEAD_NAMES:
        raise ModelFileError(f"{type(model.head).__name__} is not in HEADS and cannot be loaded")
    first, *others = model.members
    own = _own_settings(first)
    settings = {
        "version": __version__,
        "encoder": {
            **model.encoder.get_params(False),
            "input": model.encoder.input_kind,
            "n_features": model.encoder.n_features_in_,
        },
        "labels": model.labels.settings(),
        "head": own.pop("head"),
        "noise": own.pop("noise"),
        "objective": describe_objective(model.objective),
        "experts": [_EXPERT_NAMES[type(expert)] for expert in model.experts],
        **own,
        **({"others": [_own_settings(member) for member in others]} if others else {}),
        **({} if model.confidence is None else {"confidence": model.confidence.settings()}),
        **({} if model.marginals is None else {"marginals": model.marginals.settings()}),
        "probabilities": model.objective.probabilities,
        **more,
    }
    files = {
        "encoder": model.encoder.state(),
        "labels": model.labels.state(),
        **{
            part + suffix: getattr(member, part).state()
            for member, suffix in zip(model.members, _suffixes(len(others)), strict=True)
            for part in _OWN
        },
        **{_EXPERT_NAMES[type(expert)]: expert.state() for expert in model.experts},
    }
    try:
        _validate(model, files)
    except ModelFileError as error:
        raise ModelFileError(
            f"this model is not saved, because it could not be loaded again: {error}; train it "
            f"anew, with a smaller learning_rate if it diverged. {path} is as it was"
        ) from error
    model_folder(path).write(settings, files)


def _own_settings(member: Model) -> dict[str, Any]:
    """What the members of an ensemble do not share."""
    return {
        "head": {"name": _HEAD_NAMES[type(member.head)], **member.head.options._asdict()},
        "noise": describe_noise(member.noise),
        "blend": vars(member.blend),
        **({} if member.rest is None else {"rest": member.rest.settings()}),
    }


def _suffixes(n_others: int) -> list[str]:
    """What follows "head" and "noise" in the names of their files, for each member."""
    return ["", *(f"_{number}" for number in range(1, n_others + 1))]


def _validate(model: Model, files: dict[str, dict[str, torch.Tensor]]) -> None:
    """Check the state of every part of a model, by the names of its files."""
    sizes = len(model.labels), model.encoder.n_features_out
    model.encoder.validate(Tensors(files["encoder"], "encoder"))
    for member, suffix in zip(model.members, _suffixes(len(model.members) - 1), strict=True):
        for name in _OWN:
            part: Any = getattr(member, name)
            part.validate(Tensors(files[name + suffix], type(part).__name__), *sizes)
    for expert in model.experts:
        tensors = Tensors(files[_EXPERT_NAMES[type(expert)]], type(expert).__name__)
        expert.validate(tensors, *sizes)


def load_model(path: str | Path) -> tuple[Model, dict[str, Any]]:
    """A model and its manifest; a damaged or foreign folder is refused with the reason."""
    settings, files = model_folder(path).read()
    try:
        with memory_errors():
            return _restored(settings, files), settings
    except ModelFileError as error:
        raise ModelFileError(f"{path} is not a model this version can read: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        raise ModelFileError(
            f"{path} is not a model this version can read: {type(e).__name__} {e}"
        ) from e


def _restored(settings: dict[str, Any], files: dict[str, Any]) -> Model:
    """Every part, validated before its state reaches a kernel."""
    parameters = {name: settings["encoder"][name] for name in Encoder().get_params(False)}
    first, last = parameters["ngrams"]
    encoder = Encoder(**parameters | {"ngrams": (first, last)})
    encoder.validate(Tensors(files["encoder"], "encoder"))
    encoder.load_state(files["encoder"])
    described = settings["labels"]
    size = np.dtype(described["dtype"]).itemsize * described["n_classes"]
    n_bytes = sum(file["bytes"] for file in settings["files"].values())
    if size > 4 * n_bytes + _ALWAYS_ALLOWED_BYTES:
        raise ModelFileError(
            f"its labels would take {size:,} bytes, and its files have {n_bytes:,}"
        )
    labels = ClassLabels.restore(described, files["labels"])
    encoder.share_items(labels.index)
    sizes = len(labels), encoder.n_features_out
    objective = make_objective(settings["objective"])
    _check_described(describe_objective(objective), settings["objective"])
    experts = []
    for name in settings["experts"]:
        EXPERTS[name].validate(Tensors(files[name], EXPERTS[name].__name__), *sizes)
        experts.append(EXPERTS[name].restore(files[name]))
    if labels.multilabel != ("marginals" in settings):
        raise ModelFileError(
            "a model of several labels per row, and no other, has a map to marginal probabilities; "
            "train it anew"
        )
    marginals = Marginals.restore(**settings["marginals"]) if labels.multilabel else None
    own = [settings, *settings.get("others", [])]
    members = []
    for described, suffix in zip(own, _suffixes(len(own) - 1), strict=True):
        state = {part: files[part + suffix] for part in _OWN}
        head, noise, blend, rest = _restored_own(described, state, sizes)
        blend.check(objective, noise, len(experts))
        members.append(
            Model(encoder, labels, head, noise, objective, blend, tuple(experts), rest, marginals)
        )
    model = Ensemble.of(members)
    if "confidence" in settings:
        model.confidence = Confidence.restore(**settings["confidence"])
    model.attach()
    return model


def _restored_own(
    settings: dict[str, Any], state: dict[str, Any], sizes: tuple[int, int]
) -> tuple[Head, Noise, Blend, Rest | None]:
    """What the members of an ensemble do not share, of one of them."""
    head_settings = dict(settings["head"])
    kind = HEADS[head_settings.pop("name")]
    options = HeadOptions(**head_settings).check()
    kind.validate(Tensors(state["head"], kind.__name__), *sizes)
    noise = make_noise(settings["noise"])
    noise.validate(Tensors(state["noise"], type(noise).__name__), *sizes)
    noise.load_state(state["noise"])
    _check_described(describe_noise(noise), settings["noise"])
    blend = settings["blend"]
    blend = Blend(
        blend["temperature"], tuple(blend["levels"]), tuple(blend["experts"]), blend["prior"]
    )
    rest = Rest.restore(settings["rest"], sizes[0]) if "rest" in settings else None
    return kind.restore(state["head"], options), noise, blend, rest


def _check_described(described: dict[str, Any], found: dict[str, Any]) -> None:
    if json.loads(json.dumps(described, default=plain_number)) != found:
        raise ModelFileError(f"it describes {described!r:.80} as {found!r:.80}")
