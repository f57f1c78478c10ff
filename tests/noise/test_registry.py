"""Noises by name, and what importing them loads."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from extremax.errors import ArgumentError
from extremax.named import parse_named, write_named
from extremax.noise import (
    NOISES,
    FrequencyNoise,
    MixtureNoise,
    Noise,
    TreeNoise,
    UniformNoise,
    describe_noise,
    make_noise,
    paired_objective,
    with_components,
)
from extremax.objectives import make_objective


@pytest.mark.parametrize("name", NOISES)
def test_a_name_makes_an_unfitted_noise_with_defaults(name: str) -> None:
    noise = make_noise(name)
    assert type(noise) is NOISES[name]
    assert noise.get_params() == NOISES[name]().get_params()
    assert not hasattr(noise, "n_classes_")


def test_an_object_is_cloned() -> None:
    given = FrequencyNoise(0.5)
    made = make_noise(given)
    assert made is not given
    assert made.power == 0.5


def test_a_description_makes_the_same_noise() -> None:
    noise = MixtureNoise([TreeNoise(64, sharpness=0.5), "uniform"], [1.0, 3.0])
    described = describe_noise(noise)
    assert described["noise"] == "mixture"
    assert described["parts"][0]["noise"] == "tree"
    again = make_noise(described)
    assert describe_noise(again) == described
    # The description itself is left as it was.
    assert "noise" in described


def test_a_text_makes_a_noise_with_parameters() -> None:
    noise = make_noise("tree( n_components = 64, lambda_=.1, sharpness=auto, lambda_bias=-1e-1 )")
    expected = TreeNoise(64, 0.1, -0.1, sharpness="auto")
    assert noise.get_params() == expected.get_params()
    assert make_noise("uniform()").get_params() == {}
    assert make_noise("softmax(method='gumbel')").get_params()["method"] == "gumbel"


def test_a_text_makes_a_mixture_of_noises() -> None:
    text = "mixture(parts=(tree(n_components=64), frequency, 'uniform'), weights=[1, 2, 3.5])"
    noise = make_noise(text)
    assert isinstance(noise, MixtureNoise)
    assert noise.weights == [1, 2, 3.5]
    tree, frequency, uniform = (make_noise(part) for part in noise.parts)
    assert tree.get_params() == TreeNoise(64).get_params()
    assert isinstance(frequency, FrequencyNoise)
    assert isinstance(uniform, UniformNoise)


@pytest.mark.parametrize(
    "text",
    [
        "uniform",
        "tree(n_components=64, lambda_=auto)",
        "mixture(parts=(tree(n_components=64, lambda_=0.1), frequency), weights=[1, 2.5])",
        "mixture(parts=('a b', None, True, 'None', -3), weights=(1,))",
    ],
)
def test_a_text_is_written_as_it_was_read(text: str) -> None:
    assert write_named(Noise, parse_named(Noise, text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "tree(64)", "tree(n_components=", "tree(n_components=64", "tree(n_components=64))",
        "tree(n_components=8*8)", "tree(n_components=len('ab'))", "tree(**{'n_components': 3})",
        "tree(n_components=1, n_components=2)", "tree(noise='uniform')", "tree()()", "a.tree()",
        "__import__('os').system('true')", "tree(n_components={1})", "tree(n_components=f'{1}')",
        "tree(n_components=[x for x in y])", "(tree)", "tree(\0)", "-tree()",
        "tree(a=" + "(" * 500 + ")" * 500 + ")", "tree(a=" + "-" * 1500 + "1)",
        "tree(a=" + "9" * 5000 + ")", "tree(a=b'1')", "tree(a=1j)", "tree(a=...)", "tree(a=--x)",
    ],
)  # fmt: skip
def test_a_text_that_is_no_name_with_plain_values_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"noise must be|must be an? "):
        make_noise(text).check_parameters()


def test_components_are_set_where_a_text_does_not_say_them() -> None:
    text = "mixture(parts=(tree(n_components=64), tree(rounds=2), frequency), weights=(1, 1, 1))"
    parts = with_components(text, 8).get_params()["parts"]
    assert [make_noise(part).get_params().get("n_components") for part in parts] == [64, 8, None]
    assert with_components("tree(n_components=64)", 8).get_params()["n_components"] == 64
    assert with_components("tree", 8).get_params()["n_components"] == 8


@pytest.mark.parametrize(
    ("text", "noise", "expected"),
    [
        ("sampled_softmax", "quadratic", "sampled_softmax(absolute=True)"),
        ("sampled_softmax(regularization=0.1)", "quartic", None),
        ("sampled_softmax(absolute=False)", "quadratic", "sampled_softmax(absolute=False)"),
        ("sampled_softmax", "fourier", "sampled_softmax"),
        ("nce", "quadratic", "nce"),
        ("sampled_softmax", "mixture(parts=(quadratic, uniform))", None),
    ],
)
def test_a_noise_that_is_even_gets_absolute_logits(
    text: str, noise: str, expected: str | None
) -> None:
    paired = paired_objective(text, make_noise(noise))
    if expected is None:
        assert make_objective(paired).get_params()["absolute"]
    else:
        assert paired == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("forest(leaves=3)", r"noise must be one of 'tree', .* got 'forest\(leaves=3\)'"),
        ("tree(leaves=3)", "TreeNoise has no parameter 'leaves' = 3; it has, .* n_components=16"),
        ("uniform(a=1)", "UniformNoise has no parameter 'a' = 1; it has none"),
        ("tree(rounds=True)", "rounds of TreeNoise must not be True or False, got True"),
        ("forest", r"noise must be one of 'tree', 'sparse_tree', .* got 'forest'"),
        (None, "noise must be one of"),
        (3, "noise must be one of"),
        ({"n_components": 3}, "noise must be one of"),
        ({"noise": ["tree"]}, "noise must be one of"),
        ({"noise": "tree", "leaves": 3}, "TreeNoise has no parameter 'leaves'"),
    ],
)
def test_whatever_is_no_noise_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_noise(given)


def test_a_noise_that_is_not_registered_cannot_be_described() -> None:
    class Mine(UniformNoise):
        pass

    with pytest.raises(ValueError, match=r"Mine is not in .*NOISES"):
        describe_noise(Mine())


def test_importing_noises_does_not_load_numba() -> None:
    code = "import sys, extremax.noise; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
