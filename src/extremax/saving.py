"""A fitted classifier to a folder and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sklearn.utils.validation import check_is_fitted

from extremax.bag_head import BagHead
from extremax.choice import DENSE, SPARSE
from extremax.errors import ModelFileError
from extremax.features import Encoder
from extremax.head import LinearHead
from extremax.labels import LabelIndex
from extremax.model_files import pack_labels, read_model, unpack_labels, write_model
from extremax.noise import NOISES, SparseTreeNoise
from extremax.objectives import OBJECTIVES
from extremax.prediction.blocks import Head
from extremax.sparse_head import SparseHead

if TYPE_CHECKING:
    from extremax.classifier import ExtremeClassifier

_PARAMETERS = (
    "n_negatives", "learning_rate", "accumulator_start", "schedule", "epochs", "max_seconds",
    "batch_size", "validation_fraction", "patience", "memory_budget", "n_jobs", "verbose",
    "calibrate", "bag_size", "feature_dropout",
)  # fmt: skip


_NOISES = {**NOISES, "sparse tree": SparseTreeNoise}


def save(model: ExtremeClassifier, folder: str | Path) -> None:
    """Adagrad's state goes along, so that `partial_fit` can go on after `load`."""
    check_is_fitted(model, "head_")
    dtype, tensors = pack_labels(model.classes_)
    for part in ("head", "noise", "encoder"):
        state = getattr(model, f"{part}_").state()
        tensors |= {f"{part}.{k}": v for k, v in state.items()}
    tensors["class_counts"] = torch.from_numpy(model.class_counts_)
    settings = {
        "objective": _described(model.objective_, OBJECTIVES, model.objective_.settings()),
        "noise": _described(model.noise_, _NOISES, model.noise_.settings()),
        "encoder": _described(model.encoder_, {"": Encoder}, model.encoder_.get_params(False)),
        "parameters": {k: getattr(model, k) for k in _PARAMETERS},
        "seed": model.seed_,
        "n_partial_fits": model.n_partial_fits_,
        "scale": model.head_.scale,
        "temperature": model.temperature_,
        "level_weights": model.level_weights_,
        "prior_weight": model.prior_weight_,
        "several": model.several_,
        "n_rows": model.n_rows_,
        "n_features": model.n_features_in_,
        "n_classes": len(model.index_),
        "label_dtype": dtype,
        "input": model.encoder_.kind_,
        "probabilities": model.objective_.probabilities,
        "history": getattr(model, "history_", []),
        "start": next(iter(getattr(model, "looks_", [])), None),
    }
    write_model(folder, settings, tensors)


def load(kind: type[ExtremeClassifier], folder: str | Path) -> ExtremeClassifier:
    settings, tensors = read_model(folder)
    try:
        objective = _undescribed(settings["objective"], OBJECTIVES)
        noise = _undescribed(settings["noise"], _NOISES)
        encoder = Encoder(**settings["encoder"]["parameters"])
        model = kind(objective=objective, noise=noise, encoder=encoder, **settings["parameters"])
        model.objective_, model.noise_, model.encoder_ = objective, noise, encoder
        model.noise_.load_state(under("noise", tensors))
        model.encoder_.load_state(under("encoder", tensors))
        model.index_ = LabelIndex(unpack_labels(settings["label_dtype"], tensors))
        model.head_ = _head(model, settings["scale"], tensors)
        model.head_.load_state(under("head", tensors))
        model.noise_.attach(model.head_)
        model.n_features_in_ = settings["n_features"]
        model.seed_, model.n_partial_fits_ = settings["seed"], settings["n_partial_fits"]
        model.history_ = settings["history"]
        start = settings.get("start")
        model.looks_ = [] if start is None else [start]
        # Models of earlier versions have none.
        model.temperature_ = settings.get("temperature", 1.0)
        model.level_weights_ = tuple(settings.get("level_weights", ()))
        model.prior_weight_ = settings.get("prior_weight", 0.0)
        model.several_, model.n_rows_ = settings.get("several", False), settings.get("n_rows", 0)
        unknown = torch.zeros(len(model.index_), dtype=torch.int64)
        model.class_counts_ = tensors.get("class_counts", unknown).numpy()
        model.defaults_ = SPARSE if encoder.sparse_ else DENSE
    except (AttributeError, LookupError, TypeError, RuntimeError, ValueError) as error:
        raise ModelFileError(
            f"{folder} is not a model this version can read: {type(error).__name__} {error}"
        ) from error
    return model


def _head(model: ExtremeClassifier, scale: float, tensors: dict[str, torch.Tensor]) -> Head:
    n_classes, start = len(model.index_), model.accumulator_start
    if "head.table" in tensors:
        return LinearHead(n_classes, tensors["head.table"].shape[2], start, scale)
    if "head.entries" in tensors:
        entries, support = tensors["head.entries"].numpy(), tensors["head.support"].numpy()
        return SparseHead(entries, support, n_classes, start, scale)
    n_features, _, width = tensors["head.features.table"].shape
    return BagHead(n_classes, n_features, width, start, scale)


def under(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors whose names begin with ``prefix.``, without it."""
    return {k[len(prefix) + 1 :]: v for k, v in tensors.items() if k.startswith(prefix + ".")}


def _described(part: object, table: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
    if type(part) not in table.values():
        raise ModelFileError(
            f"{type(part).__name__} is not in the table of this package, so that no one could "
            "load the model; add it there first"
        )
    return {"class": type(part).__name__, "parameters": parameters}


def _undescribed(description: dict[str, Any], table: dict[str, Any]) -> Any:
    by_class = {c.__name__: c for c in table.values()}
    if description["class"] not in by_class:
        raise ValueError(f"{description['class']} is not known to it, only {', '.join(by_class)}")
    return by_class[description["class"]](**description["parameters"])
