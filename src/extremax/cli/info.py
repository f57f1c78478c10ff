"""``extremax info``: describe a saved model without loading its tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extremax.cli.console import about_probabilities, print_result, table
from extremax.cli.options import Printed, SavedModel
from extremax.cli.train import by_model, held_out_figures, kept_record
from extremax.errors import ModelFileError
from extremax.report.formatting import duration, size

_LABEL_KINDS = {"i": "integers", "u": "integers", "f": "numbers", "U": "strings", "O": "names"}


def info(saved: SavedModel, printed: Printed) -> None:
    """Show what a model is and how it was trained."""
    from extremax.storage.folder import model_folder

    folder = model_folder(saved.model)
    settings = folder.read_settings()
    n_bytes = folder.nbytes()
    shown = settings | {"bytes": n_bytes}
    print_result(shown if printed.as_json else table(_lines(saved.model, settings, n_bytes)))


def _lines(path: Path, settings: dict[str, Any], n_bytes: int) -> list[tuple[str, str]]:
    try:
        labels = settings["labels"]
        kind = labels["dtype"].lstrip("<>|=")[:1]
        return [
            ("model", f"{path}, {size(n_bytes)}"),
            ("made by", f"extremax {settings['version']}"),
            ("classes", f"{labels['n_classes']:,} {_LABEL_KINDS.get(kind, labels['dtype'])}"),
            ("features", _features(settings["encoder"])),
            *_models(settings),
            *_head(settings["head"]),
            ("objective", _call("objective", settings)),
            ("noise", _call("noise", settings)),
            *_logits(settings["blend"], settings["experts"]),
            (
                "probabilities",
                about_probabilities(
                    settings["probabilities"], "confidence" in settings or bool(settings["experts"])
                ),
            ),
            *_history(settings),
        ]
    except (KeyError, TypeError) as error:
        raise ModelFileError(f"the manifest of {path} lacks {error}") from error


def _features(encoder: dict[str, Any]) -> str:
    width, kind = encoder["n_features"], encoder["input"]
    if kind == "dense":
        return f"{width:,}, dense"
    if kind == "sequences":
        return "sequences of items, which are the classes"
    components = encoder["n_components"]
    projected = f", projected to {min(components, width):,}" if components else ""
    if kind == "sparse":
        return f"{width:,}, sparse{projected}"
    first, last = encoder["ngrams"]
    lengths = f"{first}" if first == last else f"{first} to {last}"
    return f"texts: {encoder['analyzer']} n-grams of {lengths}, {width:,} buckets{projected}"


def _models(settings: dict[str, Any]) -> list[tuple[str, str]]:
    if "others" not in settings:
        return []
    n = 1 + len(settings["others"])
    return [("models", f"{n}, whose probabilities are averaged; below is the first of them")]


def _head(head: dict[str, Any]) -> list[tuple[str, str]]:
    descriptions = {
        "bag": f"learned bag of features, {head['bag_size']:,} dimensions",
        "support": "one weight per class and feature that occur together",
        "tied": f"one vector per item, {head['bag_size']:,} dimensions",
    }
    return [("head", descriptions[head["name"]])] if head["name"] in descriptions else []


def _logits(blend: dict[str, Any], experts: list[str]) -> list[tuple[str, str]]:
    """The logits formula, if held-out rows or a product of experts changed it."""
    temperature, levels, prior = blend["temperature"], blend["levels"], blend["prior"]
    if temperature == 1 and not prior and not any(blend["experts"]):
        return []
    terms = "score"
    if levels:
        weights = " and ".join(f"{weight:g}" for weight in levels)
        terms += f" + {weights} log q" + (" by level" if len(levels) > 1 else "")
    for name, weight in zip(experts, blend["experts"], strict=False):
        terms += f" + {weight:g} log(1 + {name}/ε)"
    if prior:
        terms += f" {prior:+g} log n"
    of_noise = ", q of the noise" if levels else ""
    return [("logits", f"({terms}) / {temperature:g}{of_noise}")]


def _call(part: str, settings: dict[str, Any]) -> str:
    arguments = dict(settings[part])
    name = arguments.pop(part)
    return f"{name}({', '.join(f'{key}={value}' for key, value in arguments.items())})"


def _history(settings: dict[str, Any]) -> list[tuple[str, str]]:
    if not settings["history"]:
        return [("trained", f"by partial_fit, {settings['n_partial_fits']} times")]
    history, start = by_model(settings["history"], settings["evaluations"])["model 1"]
    last, kept = history[-1], kept_record(history, start[:1])
    lines = [
        ("trained", f"{last['epoch']} epochs in {duration(last['seconds'])}"),
        ("seed", str(settings["seed"])),
        ("last epoch", f"surrogate loss {last['surrogate_loss']:.4f}"),
    ]
    if kept is not None and kept is not last:
        lines.append(("kept epoch", str(kept["epoch"] or "none (the start)")))
    if "validation" in settings:
        lines.append(("held out", held_out_figures(settings["validation"])))
    return lines
