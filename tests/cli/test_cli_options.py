"""Options: the classifier's defaults, and the page that lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from extremax import ExtremeClassifier
from extremax.choice import DENSE, SPARSE, Defaults
from extremax.cli import app
from extremax.cli.options import Analyzer
from extremax.cli.training import Training, parse_ngrams
from extremax.features import Encoder
from extremax.noise import TreeNoise

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


def test_defaults_are_those_of_the_classifier():
    ours = Training().classifier().get_params(deep=False)
    theirs = ExtremeClassifier().get_params(deep=False)
    assert ours.pop("encoder").get_params() == Encoder().get_params()
    assert Training.tree_components == TreeNoise().n_components
    assert theirs.pop("encoder") is None
    # A seed, so that the same command gives the same model and can go on from a checkpoint.
    assert (ours.pop("random_state"), theirs.pop("random_state")) == (0, None)
    assert ours == theirs


def test_every_option_of_training_reaches_the_classifier():
    given = Training(
        noise="frequency", n_negatives=7, learning_rate=0.1, epochs=3, max_seconds=9.0,
        validation_fraction=0.2, components=8, analyzer=Analyzer.char_wb, ngrams="2-4",
        seed=5, threads=1, bag_size=9,
    )  # fmt: skip
    found = given.classifier(verbose=True).get_params(deep=False)
    assert found["noise"] == "frequency"
    assert found["encoder"].get_params() == {
        "n_components": 8, "analyzer": "char_wb", "ngrams": (2, 4), "buckets": 2**18,
    }  # fmt: skip
    same = {"n_negatives": 7, "learning_rate": 0.1, "epochs": 3, "max_seconds": 9.0, "bag_size": 9}
    same |= {"validation_fraction": 0.2, "random_state": 5, "n_jobs": 1, "verbose": 1}
    assert {name: found[name] for name in same} == same
    assert Training(tree_components=4).classifier().noise.n_components == 4
    mixed = Training(noise="mixture", tree_components=4).classifier().noise
    assert (mixed.parts[0].n_components, mixed.parts[1]) == (4, "frequency")


@pytest.mark.parametrize("name", Defaults._fields)
def test_help_says_what_is_taken_if_nothing_is_given(name):
    assert getattr(Training, name) is None
    (text,) = [option.help for option in _parameters("train") if option.name == name]
    taken = f"by default {getattr(DENSE, name)}, for rows that stay sparse {getattr(SPARSE, name)}."
    assert taken in text


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"tree_components": 8}, "sparse", "--tree-components is for dense rows"),
        ({"tree_components": 8}, "text", "--tree-components is for dense rows"),
        ({"bag_size": 8}, "dense", "--bag-size is for rows that stay sparse, those of f are dense"),
        ({"bag_size": 8, "components": 4}, "sparse", "those of f are projected by --components"),
        ({"components": 4}, "dense", "--components is for sparse rows and texts, and f is dense"),
        ({"ngrams": "2"}, "sparse", "--ngrams is for texts, and f has sparse rows"),
        ({"analyzer": Analyzer.char_wb}, "dense", "--analyzer is for texts, and f has dense rows"),
    ],
)
def test_options_that_mean_nothing_for_the_rows_are_refused(given, kind, message):
    with pytest.raises(ValueError, match=message):
        Training(**given).check(kind, "f")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"tree_components": 8}, "dense"),
        ({"tree_components": 8, "components": 4}, "text"),
        ({"bag_size": 8, "ngrams": "2"}, "text"),
        ({"bag_size": 8}, "sparse"),
    ],
)
def test_and_others_are_not(given, kind):
    Training(**given).check(kind, "f")


@pytest.mark.parametrize(("text", "found"), [("1", (1, 1)), ("3", (3, 3)), (" 2-4 ", (2, 4))])
def test_ngrams(text, found):
    assert parse_ngrams(text) == found


@pytest.mark.parametrize("text", ["", "0", "4-2", "a", "1-", "-3", "1-2-3"])
def test_bad_ngrams_are_named(text):
    with pytest.raises(ValueError, match="--ngrams"):
        parse_ngrams(text)


def _parameters(command: str) -> list[Any]:
    return typer.main.get_command(app).commands[command].params


def _options(command: str) -> set[str]:
    return {
        name
        for parameter in _parameters(command)
        if parameter.param_type_name == "option" and not parameter.hidden
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--") and name != "--help"
    }


def test_the_page_names_every_option_and_no_other():
    page = PAGE.read_text(encoding="utf-8")
    commands = ("train", "predict", "evaluate", "plan", "info")
    known = {option for command in commands for option in _options(command)}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page))
    assert named - {"--help", "--version", "--traceback"} == known
