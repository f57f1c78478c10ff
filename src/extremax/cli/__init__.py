"""The command line: ``extremax train | predict | evaluate | diagnose | compare | plan | info |
warmup``.

To add a command, add a module here and its function to the list below. Commands import numpy, torch
and numba inside their functions, so that ``extremax --help`` is fast.
"""

from __future__ import annotations

from typing import Annotated

import typer

from extremax._version import __version__
from extremax.cli.compare import compare
from extremax.cli.diagnose import diagnose
from extremax.cli.errors import Commands
from extremax.cli.evaluate import evaluate
from extremax.cli.info import info
from extremax.cli.options import expanded
from extremax.cli.plan import plan
from extremax.cli.predict import predict
from extremax.cli.train import train
from extremax.cli.warmup import warmup

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (train, predict, evaluate, diagnose, compare, plan, info):
    app.command(no_args_is_help=True)(expanded(_command))
app.command()(expanded(warmup))


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"extremax {__version__}")
        raise typer.Exit()


@app.callback()
def extremax(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the full traceback of an error.")
    ] = False,
) -> None:
    """Softmax classification when there are too many classes for softmax."""


def main() -> None:
    """Run the ``extremax`` command."""
    app()
