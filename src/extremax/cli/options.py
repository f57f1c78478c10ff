"""Options shared by several commands, in groups: a command takes dataclasses of options."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from extremax.errors import ArgumentError

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.data import Dataset, Summary


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one parameter for each field of the dataclasses that it takes."""
    groups = get_type_hints(command)
    del groups["return"]
    parameters = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if option.default is MISSING else option.default,
            annotation=Annotated[types[option.name], option.metadata["typer"]],
        )
        for group, types in [(group, get_type_hints(group)) for group in groups.values()]
        for option in fields(group)
    ]

    @wraps(command)
    def run(**values: Any) -> None:
        command(
            **{
                name: group(**{option.name: values[option.name] for option in fields(group)})
                for name, group in groups.items()
            }
        )

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def argument(metavar: str, help: str, default: Any = MISSING) -> Any:
    """A field that is an argument of the command line."""
    return field(default=default, metadata={"typer": typer.Argument(metavar=metavar, help=help)})


def option(default: Any, help: str, *flags: str, **settings: Any) -> Any:
    """A field that is an option of the command line.

    default:  MISSING requires the option.
    flags:    the names of the option, by default that of the field.
    """
    return field(default=default, metadata={"typer": typer.Option(*flags, help=help, **settings)})


def count(default: int | None, help: str, *flags: str, metavar: str = "N") -> Any:
    """An option that is a number of at least 1."""

    def check(value: int | None) -> int | None:
        if value is not None and value < 1:
            raise typer.BadParameter(f"must be at least 1, got {value}")
        return value

    return option(default, help, *flags, metavar=metavar, callback=check)


def choice(default: str | None, help: str, *names: str) -> Any:
    """An option that is one of several names."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in names:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(map(repr, names))}")
        return value

    return option(default, help, metavar=f"<{'|'.join(names)}>", callback=check)


def output(default: Any, help: str, *flags: str, folder: bool = False) -> Any:
    """An option that is a file or folder to write, checked before the command does any work."""

    def parse(text: str) -> Path:
        if not text:
            raise typer.BadParameter("must not be empty")
        return Path(text)

    def check(parameter: typer.CallbackParam, path: Path | None) -> Path | None:
        if path is not None:
            _check_output(max(parameter.opts, key=len), path, folder)
        return path

    metavar = "DIR" if folder else "FILE"
    return option(default, help, *flags, metavar=metavar, parser=parse, callback=check)


def _check_output(flag: str, path: Path, folder: bool) -> None:
    found = nearest_existing(path)
    if found == path.absolute():
        if folder and not found.is_dir():
            raise ArgumentError(f"{path} is a file; {flag} must be a folder")
        if not folder and found.is_dir():
            raise ArgumentError(f"{path} is a folder; {flag} must be a file")
    elif not found.is_dir():
        raise ArgumentError(f"{path} cannot be created, because {found} is a file ({flag})")
    # A file is replaced, which takes the permission of its folder; a device is written to.
    written = found.parent if found.is_file() else found
    if not os.access(written, os.W_OK):
        raise ArgumentError(f"{written}: no permission to write here ({flag})")


def nearest_existing(path: Path) -> Path:
    """Return the absolute path, or its nearest parent that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.exists())


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """The folder of a saved model."""

    model: Path = argument("MODEL", "Folder written by `extremax train`.")


@dataclass(frozen=True, kw_only=True)
class Threads:
    """The number of threads."""

    threads: int | None = count(
        None, "Number of threads, by default one per core. Results do not depend on it."
    )


@dataclass(frozen=True, kw_only=True)
class LoadedModel(Threads, SavedModel):
    """A saved model, and how many threads use it."""

    def load(self) -> ExtremeClassifier:
        """Load the model. It predicts with ``threads``, whatever it was trained with."""
        from extremax import ExtremeClassifier

        classifier = ExtremeClassifier.load(self.model)
        classifier.n_jobs = self.threads
        return classifier


@dataclass(frozen=True, kw_only=True)
class Printed:
    """The form of results on standard output."""

    as_json: bool = option(False, "Print one JSON object instead of text.", "--json")


@dataclass(frozen=True, kw_only=True)
class Input:
    """A file of rows, and how to read it."""

    file: Path = argument("FILE", "File of rows; its labels are ignored.")
    format: str | None = option(
        None,
        "npy, npz, svmlight, xc, parquet, tsv, fasttext or sessions. Detected by default from the "
        "file name or the first line.",
        metavar="NAME",
    )
    label_column: str | None = option(
        None, "Parquet: column of labels, `label` by default.", metavar="NAME"
    )
    text_column: str | None = option(
        None, "Parquet: column of texts, `text` by default.", metavar="NAME"
    )
    zero_based: bool | None = option(
        None,
        "First feature index: by default 1 for svmlight and 0 for xc.",
        "--zero-based/--one-based",
    )
    quiet: bool = option(False, "Print only errors.", "--quiet", "-q")

    def options(self) -> dict[str, Any]:
        """The parameters of `extremax.data.read`."""
        names = ("format", "label_column", "text_column", "zero_based", "labels", "keep_labels")
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def blocks(self, rows: int, *, unlabeled: bool = False) -> Iterator[Dataset]:
        """Stream blocks of at most ``rows`` rows; see `extremax.data.read_blocks`."""
        from extremax import data

        return data.read_blocks(self.file, rows=rows, unlabeled=unlabeled, **self.options())


@dataclass(frozen=True, kw_only=True)
class LabeledInput(Input):
    """A file of rows with labels, and how to read it."""

    file: Path = argument("FILE", "File of rows with labels.")
    labels: Path | None = option(
        None,
        "Labels for an .npy or .npz FILE: an .npy, or a text file with one label per line.",
        metavar="FILE",
    )
    keep_labels: str | None = choice(
        "first",
        "Which label to keep of rows with several labels: the first, the smallest, or all.",
        *("first", "smallest", "all"),
    )

    def read(self, limit: int | None = None) -> Dataset:
        """Read up to ``limit`` rows; see `extremax.data.read`."""
        from extremax import data

        return data.read(self.file, limit=limit, **self.options())

    def scan(self) -> Summary:
        """Return the size of the file; see `extremax.data.scan`."""
        from extremax import data

        return data.scan(self.file, **self.options())


@dataclass(frozen=True, kw_only=True)
class SingleLabelInput(LabeledInput):
    """The input of a command that uses one label per row."""

    keep_labels: str | None = choice(
        "first", "Which label to keep of rows with several labels.", "first", "smallest"
    )
