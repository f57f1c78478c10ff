"""Options: their defaults are those of the library, and the documentation lists all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from scipy.sparse import csr_matrix

from extremax import ExtremeClassifier
from extremax.cli import app
from extremax.cli.training import Training, parse_ngrams
from extremax.data import Dataset
from extremax.features import Encoder
from extremax.noise import TreeNoise, noise_name
from extremax.recipes import RECIPES
from extremax.rows import DenseRows, SequenceRows, SparseRows

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


def test_defaults_are_those_of_the_classifier():
    ours = Training().classifier().get_params(deep=False)
    theirs = ExtremeClassifier().get_params(deep=False)
    assert ours.pop("encoder").get_params() == Encoder().get_params()
    assert Training.tree_components == TreeNoise().n_components
    assert theirs.pop("encoder") is None
    # A fixed seed, so that rerunning a command gives the same model or resumes its checkpoint.
    assert (ours.pop("random_state"), theirs.pop("random_state")) == (0, None)
    assert ours == theirs


def test_every_option_of_training_reaches_the_classifier():
    given = Training(
        noise="frequency", n_negatives=7, learning_rate=0.1, epochs=3, max_seconds=9.0,
        validation_fraction=0.2, components=8, analyzer="char_wb", ngrams="2-4",
        seed=5, threads=1, bag_size=9, start="zeros", batch_size=64, calibrate=True,
        weight_decay=0.01, accumulators="row",
    )  # fmt: skip
    found = given.classifier(verbose=True).get_params(deep=False)
    assert found["noise"] == "frequency"
    assert found["encoder"].get_params() == {
        "n_components": 8, "analyzer": "char_wb", "ngrams": (2, 4), "buckets": 2**24,
    }  # fmt: skip
    same = {"n_negatives": 7, "learning_rate": 0.1, "epochs": 3, "max_seconds": 9.0, "bag_size": 9}
    same |= {"validation_fraction": 0.2, "random_state": 5, "n_jobs": 1, "verbose": 1}
    same |= {"start": "zeros", "batch_size": 64, "calibrate": True, "weight_decay": 0.01}
    same |= {"accumulators": "row"}
    assert {name: found[name] for name in same} == same
    resized = Training(tree_components=4).classifier()
    assert resized.objective == RECIPES[DenseRows].objective
    assert resized.noise.parts[0].n_components == 4
    tree = Training(noise="tree(lambda_=0.1)", tree_components=4).classifier().noise
    assert (tree.n_components, tree.lambda_) == (4, 0.1)
    mixed = Training(noise="mixture", tree_components=4).classifier().noise
    assert (mixed.parts[0].n_components, noise_name(mixed.parts[1])) == (4, "frequency")


@pytest.mark.parametrize("name", ["objective", "noise", "n_negatives", "epochs"])
def test_help_shows_the_defaults_of_the_recipes(name):
    assert getattr(Training, name) is None
    (text,) = [option.help for option in _parameters("train") if option.name == name]
    if name == "objective":
        assert "by default exact for dense rows" in text
        assert RECIPES[SparseRows].objective in text
        return
    dense, sparse = (getattr(kind, name) for kind in (RECIPES[DenseRows], RECIPES[SparseRows]))
    assert f"by default {dense} for dense rows, {sparse} for sparse rows." in text
    shared = RECIPES[SequenceRows].shared
    expected = {"n_negatives": shared.n_negatives, "epochs": shared.epochs}.get(name, "")
    assert f"Sessions: {expected}" in text or not expected


def test_compare_draws_as_many_classes_as_the_recipe_for_dense_rows():
    (option,) = [option for option in _parameters("compare") if option.name == "n_negatives"]
    assert option.default == RECIPES[DenseRows].n_negatives


def data(kind: str) -> Dataset:
    features: dict[str, Any] = {
        "dense": np.ones((2, 3)), "sparse": csr_matrix(np.ones((2, 3))), "text": ["a", "b"],
    }  # fmt: skip
    return Dataset(features[kind], np.arange(2), ())


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"tree_components": 8}, "sparse", "--tree-components applies to dense rows, but"),
        ({"tree_components": 8}, "text", "the rows of f are sparse (--components 256 makes them"),
        (
            {"bag_size": 8},
            "dense",
            "--bag-size applies to sparse rows and sessions, but the rows of f are dense",
        ),
        ({"bag_size": 8, "components": 4}, "sparse", "are dense (made dense by --components)"),
        ({"components": 4}, "dense", "--components applies to sparse rows and texts, but"),
        ({"ngrams": "2"}, "sparse", "--ngrams applies to texts, but the rows of f are sparse"),
        ({"analyzer": "char_wb"}, "dense", "--analyzer applies to texts, but the rows"),
    ],
)
def test_options_without_effect_on_the_rows_are_rejected(given, kind, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Training(**given).check(data(kind), "f")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"tree_components": 8}, "dense"),
        ({"tree_components": 8, "components": 4}, "text"),
        ({"bag_size": 8, "ngrams": "2"}, "text"),
        ({"bag_size": 8}, "sparse"),
    ],
)
def test_options_with_an_effect_on_the_rows_are_accepted(given, kind):
    Training(**given).check(data(kind), "f")


@pytest.mark.parametrize(("text", "found"), [("1", (1, 1)), ("3", (3, 3)), (" 2-4 ", (2, 4))])
def test_ngrams(text, found):
    assert parse_ngrams(text) == found


@pytest.mark.parametrize("text", ["", "0", "4-2", "a", "1-", "-3", "1-2-3"])
def test_invalid_ngrams_are_rejected(text):
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
    general = {"--help", "--version", "--traceback", "--install-completion"}
    assert named - general == known
