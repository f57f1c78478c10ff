"""States from damaged or malicious files: every tensor of every noise, changed in every way.

A change is refused by `validate`, or harmless: all kernels run on what was loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

from extremax.data.synthetic import clustered
from extremax.errors import ModelFileError
from extremax.heads import LinearHead
from extremax.noise import NOISES, MixtureNoise, Noise, make_noise, sparse_tree_shape
from extremax.random import Stream
from extremax.rows import as_rows
from extremax.tensors import Tensors

N_CLASSES, N_TREE, N_FEATURES = 34, 30, 5
FEATURES, LABELS = clustered(600, N_TREE, N_FEATURES, seed=1)
ROWS = as_rows(FEATURES[:7])
EXTREMES = [
    0,
    -1,
    1,
    2,
    N_TREE,
    N_CLASSES,
    255,
    256,
    2**15 - 1,
    2**31 - 1,
    -(2**31),
    2**62,
    -(2**63),
]
FLOATS = [np.nan, np.inf, -np.inf]
DTYPES = {
    torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.float32, torch.float64, torch.complex64,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _deep_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse trees of two levels."""
    monkeypatch.setattr(sparse_tree_shape, "HALVINGS", 3)


@pytest.fixture(params=[*NOISES, "mixture of all"])
def noise(request: pytest.FixtureRequest) -> Noise:
    """A fitted noise with classes that appeared after the fit."""
    given: Any = request.param
    if given == "mixture of all":
        names = ("sparse_tree", "bigram", "log_uniform", "uniform")
        given = MixtureNoise((*names, {"noise": "tree", "n_components": 3}), np.ones(5))
    noise = make_noise(given).fit(FEATURES, LABELS, N_TREE)
    noise.extend(N_CLASSES)
    return noise


def state_of(noise: Noise) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in noise.state().items()}


def validate(noise: Noise, state: dict[str, torch.Tensor]) -> Noise:
    fresh = clone(noise)
    fresh.validate(Tensors(state, type(noise).__name__), N_CLASSES, N_FEATURES)
    return fresh


def use(noise: Noise, state: dict[str, torch.Tensor]) -> None:
    """Load the state and run every kernel; indices out of bounds would crash or corrupt memory."""
    noise.load_state(state)
    head = LinearHead(N_CLASSES, N_FEATURES)
    noise.attach(head.vectors)
    context = noise.context(ROWS)
    draw = noise.sample(context, 6, Stream.of(0, rows=np.arange(len(ROWS))))
    assert int(draw.labels.min()) >= 0
    assert int(draw.labels.max()) < N_CLASSES
    noise.log_prob(context, draw.labels)
    noise.log_prob_all(context)
    searcher = noise.searcher(head)
    if searcher is not None:
        weights = np.ones(noise.n_levels)
        for block in searcher.candidates(ROWS, 3, 4, weights, lambda scores: scores):
            classes = block.classes(block.sums.topk(3, dim=1).indices)
            assert 0 <= int(classes.min()) <= int(classes.max()) < N_CLASSES
    noise.extend(N_CLASSES + 1)


def test_its_own_state_is_accepted(noise: Noise) -> None:
    state = state_of(noise)
    use(validate(noise, state), state)


def test_a_missing_or_unknown_tensor_is_refused(noise: Noise) -> None:
    for name in noise.state():
        state = state_of(noise)
        del state[name]
        with pytest.raises(ModelFileError):
            validate(noise, state)
    for name in ("unknown", "9.nodes", "0.unknown"):
        state = state_of(noise) | {name: torch.zeros(3)}
        with pytest.raises(ModelFileError, match=r"unknown|no part 9"):
            validate(noise, state)


def test_another_type_is_refused(noise: Noise) -> None:
    for name, tensor in noise.state().items():
        for dtype in DTYPES - {tensor.dtype}:
            state = state_of(noise) | {name: tensor.to(dtype)}
            with pytest.raises(ModelFileError, match=r"expected torch\."):
                validate(noise, state)


def other_shapes(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    yield tensor[None]
    if tensor.ndim:
        yield tensor[..., None]
        yield torch.cat([tensor, tensor[-1:]])
        yield tensor[:-1].clone()
        yield tensor[:0].clone()
        yield tensor.reshape(-1)[0]
    if tensor.ndim == 2:
        yield tensor[:, 1:].clone()
        yield torch.cat([tensor, tensor], 1)


def refused_or_harmless(noise: Noise, state: dict[str, torch.Tensor]) -> bool:
    """Whether the state is refused; if not, it is used."""
    try:
        fresh = validate(noise, state)
    except ModelFileError:
        return True
    use(fresh, state)
    return False


def test_another_shape_is_refused(noise: Noise) -> None:
    for name, tensor in noise.state().items():
        for changed in other_shapes(tensor):
            # A bigram may have been fitted to another number of classes.
            if changed.shape != tensor.shape and not name.endswith("unigram"):
                with pytest.raises(ModelFileError):
                    validate(noise, state_of(noise) | {name: changed})
            else:
                refused_or_harmless(noise, state_of(noise) | {name: changed})


def test_floats_that_are_not_finite_are_refused(noise: Noise) -> None:
    for name, tensor in noise.state().items():
        if tensor.is_floating_point():
            for value in FLOATS:
                state = state_of(noise)
                state[name].view(-1)[-1] = value
                with pytest.raises(ModelFileError, match="NaN or values beyond"):
                    validate(noise, state)


def changed_values(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Single numbers replaced by extremes, by others of the tensor, and by random bits."""
    random, flat = np.random.default_rng(0), tensor.reshape(-1)
    if not len(flat):
        return
    limits = torch.iinfo(tensor.dtype) if not tensor.is_floating_point() else None
    for at in {0, len(flat) // 2, len(flat) - 1, *random.integers(len(flat), size=3).tolist()}:
        values = [float(flat[at]) + 1, float(flat[at]) - 1, float(flat[random.integers(len(flat))])]
        values += [1e30, -1e30, 1e-30] if limits is None else EXTREMES
        for value in values:
            changed = flat.clone()
            if limits is not None:
                value = min(max(int(value), limits.min), limits.max)
            changed[at] = value
            yield changed.reshape(tensor.shape)
        if limits is not None:
            changed = flat.clone()
            changed[at] = int(random.integers(limits.min, limits.max))
            yield changed.reshape(tensor.shape)


def test_other_values_are_refused_or_harmless(noise: Noise) -> None:
    refused = 0
    for name, tensor in noise.state().items():
        for changed in changed_values(tensor):
            refused += refused_or_harmless(noise, state_of(noise) | {name: changed})
    assert refused > 0


def test_integers_that_are_all_extreme_are_refused_or_harmless(noise: Noise) -> None:
    for name, tensor in noise.state().items():
        if not tensor.is_floating_point():
            limits = torch.iinfo(tensor.dtype)
            for value in (limits.min, limits.max, -1, 0, 1):
                changed = torch.full_like(tensor, value)
                refused_or_harmless(noise, state_of(noise) | {name: changed})


def test_shuffled_integers_are_refused_or_harmless(noise: Noise) -> None:
    generator = torch.Generator().manual_seed(0)
    for name, tensor in noise.state().items():
        if tensor.ndim and not tensor.is_floating_point():
            for changed in (
                tensor.flip(0),
                tensor[torch.randperm(len(tensor), generator=generator)],
            ):
                refused_or_harmless(noise, state_of(noise) | {name: changed.contiguous()})


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("frequency", {"power": "a"}),
        ("frequency", {"power": 1e9}),
        ("bigram", {"column": 7}),
        ("bigram", {"backoff": -1}),
        ("fourier", {"n_features": 10**12}),
        ("fourier", {"nu": None}),
        ("tree", {"sharpness": 2.0}),
        ("sparse_tree", {"seed": -1}),
        ("softmax", {"method": "guess"}),
        ("quadratic", {"alpha": float("nan")}),
        ("mixture", {"weights": [1.0]}),
        ("mixture", {"parts": ["tree", {"noise": "frequency", "power": "a"}]}),
    ],
)
def test_bad_parameters_of_a_file_are_refused(name: str, parameters: dict[str, Any]) -> None:
    state = NOISES[name]().fit(FEATURES, LABELS, N_TREE).state()
    noise = make_noise({"noise": name, **parameters})
    with pytest.raises(ModelFileError):
        noise.validate(Tensors(state, "noise"), N_TREE, N_FEATURES)


def test_weights_of_a_mixture_must_sum_to_one() -> None:
    noise = MixtureNoise(("uniform", "frequency")).fit(FEATURES, LABELS, N_TREE)
    state = noise.state() | {"log_weights": torch.tensor([-0.5, -0.5], dtype=torch.float64)}
    with pytest.raises(ModelFileError, match="do not sum to one"):
        noise.validate(Tensors(state, "mixture"), N_TREE, N_FEATURES)
