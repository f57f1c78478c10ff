"""Planned sizes against those of real models, for every kind of input."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.data import Dataset, clustered
from extremax.features import Encoder
from extremax.heads import SupportHead
from extremax.labels import LabelLists, label_lists
from extremax.planning import Workload, estimate_memory, model_bytes
from extremax.planning.memory import choice_of
from extremax.training.data import Examples

N, N_CLASSES = 3000, 200


class Case(NamedTuple):
    features: Any
    labels: np.ndarray | LabelLists
    parameters: dict[str, Any]


def _cases() -> dict[str, Case]:
    x, y = clustered(N, N_CLASSES, 60, seed=0)
    matrix = sparse.csr_matrix(np.where(x > np.quantile(x, 0.8), x, 0).astype(np.float32))
    texts = [" ".join(f"w{j}" for j in row.indices) for row in matrix]
    several = label_lists([[label, (7 * label + 1) % N_CLASSES] for label in y.tolist()], N)
    projected = {"encoder": Encoder(n_components=16)}
    return {
        "dense": Case(x, y, {}),
        "dense, sampled softmax": Case(x, y, {"objective": "sampled_softmax", "noise": "auto"}),
        "dense, exact": Case(x, y, {"objective": "exact"}),
        "dense, float64, auto": Case(x.astype(float), y, {"objective": "auto", "noise": "auto"}),
        "dense, by row": Case(x, y, {"noise": "uniform", "accumulators": "row"}),
        "sparse": Case(matrix, y, {}),
        "sparse, exact": Case(matrix, y, {"objective": "exact"}),
        "sparse, frequency": Case(matrix, y, {"noise": "frequency", "bag_size": 16}),
        "sparse, by row": Case(matrix, y, {"objective": "sampled_softmax", "accumulators": "row"}),
        "sparse, projected": Case(matrix, y, projected),
        "text": Case(texts, y, {}),
        "text, projected": Case(texts, y, projected),
        "multilabel": Case(x, several, {}),
        "multilabel, float64": Case(x.astype(float), several, {}),
        "multilabel, sparse": Case(matrix, several, {}),
        "multilabel, projected": Case(matrix, several, projected),
    }


CASES = _cases()


def planned(case: Case) -> tuple[Workload, ExtremeClassifier]:
    classifier = ExtremeClassifier(epochs=1, random_state=0, n_jobs=1, **case.parameters)
    encoder = classifier.encoder or Encoder()
    work = Workload.of(Dataset(case.features, case.labels, ()), N_CLASSES, encoder)
    return work, classifier


def state_bytes(state: dict[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_plan_is_that_of_the_trained_model(case: Case, tmp_path: Path) -> None:
    work, classifier = planned(case)
    model = classifier.fit(case.features, case.labels).model_
    # The same rows and parts.
    examples = Examples.pair(model.encoder.transform(case.features), case.labels, None)
    rows = examples.rows
    assert work.encoded.rows is type(rows)
    assert work.sizes == (*rows.shape, N_CLASSES, pytest.approx(rows.nonzeros))
    choice = choice_of(work, classifier)
    kinds = [type(model.head), type(model.objective), type(model.noise)]
    assert [choice.head, type(choice.objective), type(choice.noise)] == kinds
    # The same sizes in memory.
    items = estimate_memory(work, classifier).items
    head = items["head"] + items["Adagrad accumulators"]
    if isinstance(model.head, SupportHead):
        # Pairs of class and feature that occur repeatedly are stored once; gradients come on top.
        assert state_bytes(model.head.state()) <= head <= 3 * state_bytes(model.head.state())
    else:
        # Feature vectors of a bag leave the place of a bias unused.
        assert head == pytest.approx(state_bytes(model.head.state()), rel=0.02)
    saved = work.encoded.needs.saved
    assert items.get("encoder", 0.0) >= saved == pytest.approx(encoder_bytes(model.encoder))
    # And on disk. A fit to sparse rows keeps as many weights as the data suggest.
    classifier.save(tmp_path)
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    if isinstance(model.head, SupportHead):
        assert size <= model_bytes(work, classifier) <= 3 * size
    else:
        tolerance = 0.5 if model.noise.is_classifier else 0.1
        assert model_bytes(work, classifier) == pytest.approx(size, rel=tolerance)


def encoder_bytes(encoder: Encoder) -> int:
    """Bytes of an encoder's state besides two numbers."""
    state = encoder.state()
    return state_bytes(state) - state_bytes({k: state[k] for k in ("n_features", "kind")})


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_bytes_of_rows_are_those_of_real_ones(case: Case) -> None:
    work, classifier = planned(case)
    encoder = classifier.encoder or Encoder()
    rows = encoder.fit_transform(case.features)
    examples = Examples.pair(rows, case.labels, None)
    if isinstance(case.features, list):
        read = sum(8 + len(text) for text in case.features)
        # An empty string takes 41 to 49 bytes.
        assert read + 41 * N <= work.rows * work.row_bytes <= read + 49 * N
    elif sparse.issparse(case.features):
        arrays = (getattr(case.features, name) for name in ("data", "indices", "indptr"))
        assert work.rows * work.row_bytes == pytest.approx(sum(a.nbytes for a in arrays), rel=1e-2)
    else:
        assert work.rows * work.row_bytes == case.features.nbytes
    encoded = new_bytes(examples, case.features)
    assert work.rows * work.encoded.bytes_per_row == pytest.approx(encoded, rel=1e-2, abs=100)


def new_bytes(examples: Examples, given: Any) -> int:
    """Bytes of the encoded rows that the user's arrays do not hold already."""
    if not sparse.issparse(given) and not isinstance(given, list):
        array = examples.rows.dense().array
        return 0 if np.shares_memory(array, given) else array.nbytes
    if type(examples.rows).name == "dense rows":
        return examples.rows.nbytes
    rows = examples.rows.sparse()
    shared = sparse.issparse(given) and np.shares_memory(rows.values, given.data)
    matrix = 0 if shared else rows.values.nbytes + rows.indices.nbytes + rows.matrix.indptr.nbytes
    return rows.indptr.nbytes + matrix
