"""Options shared by several commands, in groups: a command takes dataclasses of options."""

from __future__ import annotations

import gc
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from extremax.errors import ArgumentError

if TYPE_CHECKING:
    from extremax import ExtremeClassifier
    from extremax.data import Dataset

# Help shows options in these panels, the most needed ones first, without a panel of their own.
READING, ANSWERS, TEXTS = "Reading FILE", "Which classes to answer with", "Texts"
TRAINING, METHOD, DETAILS, RUNNING = "Training", "Method", "Details of the method", "Running"
# Wider ones leave no room for help in 80 columns.
_WIDEST_CHOICE = 24
_PANELS = (None, READING, ANSWERS, TEXTS, TRAINING, METHOD, DETAILS, RUNNING)


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one parameter for each field of the dataclasses that it takes, by panel."""
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
    parameters.sort(key=lambda one: _PANELS.index(one.annotation.__metadata__[0].rich_help_panel))

    @wraps(command)
    def run(**values: Any) -> None:
        command(
            **{
                name: group(**{option.name: values[option.name] for option in fields(group)})
                for name, group in groups.items()
            }
        )

    # Lines are as long as the terminal is wide.
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def argument(metavar: str, help: str, default: Any = MISSING) -> Any:
    """A field that is an argument of the command line."""
    return field(default=default, metadata={"typer": typer.Argument(metavar=metavar, help=help)})


def option(default: Any, help: str, *flags: str, panel: str | None = None, **settings: Any) -> Any:
    """A field that is an option of the command line.

    default:  MISSING requires the option.
    flags:    the names of the option, by default that of the field.
    panel:    where help shows it.
    """
    made = typer.Option(*flags, help=help, rich_help_panel=panel, **settings)
    return field(default=default, metadata={"typer": made})


def count(
    default: int | None, help: str, *flags: str, metavar: str = "N", panel: str | None = None
) -> Any:
    """An option that is a number of at least 1."""

    def check(value: int | None) -> int | None:
        if value is not None and value < 1:
            raise typer.BadParameter(f"must be at least 1, got {value}")
        return value

    return option(default, help, *flags, metavar=metavar, callback=check, panel=panel)


def choice(default: str | None, help: str, *names: str, panel: str | None = None) -> Any:
    """An option that is one of several names."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in names:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(map(repr, names))}")
        return value

    def complete() -> list[str]:
        return list(names)

    listed = f"<{'|'.join(names)}>"
    shown = listed if len(listed) < _WIDEST_CHOICE else "NAME"
    return option(
        default, help, metavar=shown, callback=check, autocompletion=complete, panel=panel
    )


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


@contextmanager
def collector_resting() -> Iterator[None]:
    """Where modules are loaded: they make a million objects, none of them garbage. Looking for it
    took a sixth of the time of a short command."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, kw_only=True)
class Threads:
    """The number of threads."""

    threads: int | None = count(
        None,
        "Number of threads, by default one per core. Results do not depend on it.",
        panel=RUNNING,
    )


@dataclass(frozen=True, kw_only=True)
class Machine(Threads):
    """The number of threads, and a GPU."""

    device: str = choice(
        "cpu",
        "Where the head is trained and scored: cuda is a GPU, auto a GPU where there is one that "
        "is worth it.",
        *("cpu", "cuda", "auto"),
        panel=RUNNING,
    )


@dataclass(frozen=True, kw_only=True)
class LoadedModel(Machine, SavedModel):
    """A saved model, and what it runs on."""

    def load(self) -> ExtremeClassifier:
        """Load the model. It predicts with ``threads`` on ``device``, whatever it was trained
        with."""
        with collector_resting():
            from extremax import ExtremeClassifier

            classifier = ExtremeClassifier.load(self.model)
        classifier.n_jobs, classifier.device = self.threads, self.device
        return classifier


@dataclass(frozen=True, kw_only=True)
class Printed:
    """The form of results on standard output."""

    as_json: bool = option(False, "Print one JSON object instead of text.", "--json", panel=RUNNING)


@dataclass(frozen=True, kw_only=True)
class Input:
    """Files of rows, and how to read them."""

    files: list[Path] = argument(
        "FILE",
        "File of rows; its labels are ignored. Several files are read as one, and so are those "
        "that a quoted pattern such as 'part-*.tsv' matches; - is standard input.",
    )
    text_column: str | None = option(
        None,
        "Parquet, csv, tsv: column of texts, `text` by default. A tsv file has names of columns in "
        "its first row if this or --label-column is given.",
        metavar="NAME",
    )
    label_column: str | None = option(
        None, "Parquet, csv, tsv: column of labels, `label` by default.", metavar="NAME"
    )
    format: str | None = option(
        None,
        "npy, npz, svmlight, xc, parquet, csv, tsv, fasttext or sessions. Detected by default from "
        "the file name or the first line.",
        metavar="NAME",
        panel=READING,
    )
    zero_based: bool | None = option(
        None,
        "First feature index: by default 1 for svmlight and 0 for xc.",
        "--zero-based/--one-based",
        panel=READING,
    )
    quiet: bool = option(False, "Print only errors.", "--quiet", "-q", panel=RUNNING)

    @property
    def name(self) -> str:
        """What messages call the files."""
        more = len(self.files) - 1
        return f"{self.files[0]}{f' and {more} more' if more else ''}"

    def options(self) -> dict[str, Any]:
        """The parameters of `extremax.data.read`."""
        names = ("format", "label_column", "text_column", "zero_based", "labels", "keep_labels")
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def blocks(self, rows: int, *, unlabeled: bool = False) -> Iterator[Dataset]:
        """Stream blocks of at most ``rows`` rows; see `extremax.data.read_blocks`."""
        from extremax import data

        return data.read_blocks(self.files, rows=rows, unlabeled=unlabeled, **self.options())


@dataclass(frozen=True, kw_only=True)
class LabeledInput(Input):
    """Files of rows with labels, and how to read them."""

    files: list[Path] = argument(
        "FILE",
        "File of rows with labels. Several files are read as one, and so are those that a quoted "
        "pattern such as 'part-*.tsv' matches; - is standard input.",
    )
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

        return data.read(self.files, limit=limit, **self.options())


@dataclass(frozen=True, kw_only=True)
class SingleLabelInput(LabeledInput):
    """The input of a command that uses one label per row."""

    keep_labels: str | None = choice(
        "first", "Which label to keep of rows with several labels.", "first", "smallest"
    )
