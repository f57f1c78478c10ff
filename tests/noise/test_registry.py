"""Noises by name, and what importing them loads."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from extremax.noise import (
    NOISES,
    FrequencyNoise,
    MixtureNoise,
    TreeNoise,
    UniformNoise,
    describe_noise,
    make_noise,
)


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


@pytest.mark.parametrize(
    ("given", "message"),
    [
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
