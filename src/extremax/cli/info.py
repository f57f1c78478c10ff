"""``extremax info``: what a model folder holds, without loading it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from extremax.cli.console import duration, size, table
from extremax.cli.options import AsJson, Model


def info(model: Model, as_json: AsJson = False) -> None:
    """Show what a model is and how it was trained."""
    from extremax.model_files import read_settings

    settings = read_settings(model)
    if as_json:
        shown = settings | {"bytes": size_on_disk(model)}
        typer.echo(json.dumps(shown, indent=1, ensure_ascii=False))
    else:
        typer.echo(table(_lines(model, settings)))


def size_on_disk(folder: Path) -> int:
    """Bytes of a model's files."""
    names = ("model.json", "tensors.safetensors")
    return sum((folder / name).stat().st_size for name in names if (folder / name).exists())


def _lines(folder: Path, settings: dict[str, Any]) -> list[tuple[str, str]]:
    from extremax.errors import ModelFileError

    try:
        return [
            ("model", f"{folder}, {size(size_on_disk(folder))}"),
            ("made by", f"extremax {settings['version']}"),
            ("classes", f"{settings['n_classes']:,} {_label_kind(settings['label_dtype'])}"),
            ("features", _features(settings)),
            *_bag(settings),
            ("objective", _part(settings["objective"])),
            ("noise", _part(settings["noise"])),
            *_blend(settings),
            ("probabilities", settings["probabilities"]),
            *_history(settings),
        ]
    except (KeyError, TypeError) as error:
        raise ModelFileError(f"{folder}/model.json lacks {error}") from error


def _label_kind(dtype: str) -> str:
    kinds = {"i": "integers", "u": "integers", "f": "numbers", "U": "strings", "O": "names"}
    return kinds.get(dtype.lstrip("<>|=")[:1], dtype)


def _features(settings: dict[str, Any]) -> str:
    encoder = settings["encoder"]["parameters"]
    width, kind = settings["n_features"], settings["input"]
    if kind == "dense":
        return f"{width:,}, dense"
    components = encoder["n_components"]
    projected = f", projected to {min(components, width):,}" if components else ""
    if kind == "sparse":
        return f"{width:,}, sparse{projected}"
    first, last = encoder["ngrams"]
    lengths = f"{first}" if first == last else f"{first} to {last}"
    return f"texts: {encoder['analyzer']} n-grams of {lengths}, {width:,} buckets{projected}"


def _bag(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """The head, where rows stay sparse."""
    projected = settings["encoder"]["parameters"]["n_components"] is not None
    if settings["input"] == "dense" or projected:
        return []
    if settings["objective"]["class"] == "ExactSoftmax":
        return [("head", "a weight where class and feature met")]
    return [("head", f"learned bag of features, {settings['parameters']['bag_size']:,} dimensions")]


def _blend(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """How much a noise that is a classifier of its own says beside the head."""
    levels = settings.get("level_weights", ())
    if not levels:
        return []
    weights = " and ".join(f"{w:g}" for w in levels)
    by_level = f"{weights} log q" + (" by level" if len(levels) > 1 else "")
    prior, temperature = settings["prior_weight"], settings["temperature"]
    return [("logits", f"(score + {by_level} {prior:+g} log n) / {temperature:g}, q the noise's")]


def _part(description: dict[str, Any]) -> str:
    parameters = ", ".join(f"{k}={v}" for k, v in description["parameters"].items())
    return f"{description['class']}({parameters})"


def _history(settings: dict[str, Any]) -> list[tuple[str, str]]:
    from extremax.cli.train import figures, kept_record

    history = settings["history"]
    if not history:
        return [("trained", f"by partial_fit, {settings['n_partial_fits']} times")]
    start = [settings["start"]] if settings.get("start") else []
    last, kept = history[-1], kept_record(history, start)
    lines = [
        ("trained", f"{last['epoch']} epochs in {duration(last['seconds'])}"),
        ("seed", str(settings["seed"])),
        ("last epoch", f"surrogate loss {last['surrogate_loss']:.4f}"),
    ]
    if kept is not None:
        lines[-1] = ("last epoch", f"{lines[-1][1]}, held out: {figures(last)}")
        if kept is not last:
            which = kept["epoch"] or "none, the start"
            lines.append(("kept epoch", f"{which}, held out: {figures(kept)}"))
    return lines
