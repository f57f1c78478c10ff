"""The comparison with other classifiers of text: its rows, its figures, its last line."""

from __future__ import annotations

import heapq
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

FOLDER = Path(__file__).parents[2] / "benchmarks"


def last_line(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(FOLDER / "text_peers.py"), "--quick", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.extras
def test_quick_run_reports_its_figures_and_resumes_from_kept_ones(
    tmp_path: Path, load: Any
) -> None:
    result = last_line("--out", str(tmp_path))
    assert set(load("run_all").SHOWN["text_peers"]) <= result.keys()
    assert result["data"] == "synthetic"
    # There is something to learn, and it is learned.
    assert result["loglik"] > -math.log(result["sizes"]["classes"])
    assert 10 / result["sizes"]["classes"] < result["acc1"] <= 1
    assert 10 / result["sizes"]["labels"] < result["p1"] <= 1
    assert 0 < result["peak_gb"] < 100
    assert result["fit_over_pecos"] is result["docs_per_s_over_pecos"] is None
    kept = tmp_path / "synthetic-quick" / "single-extremax.json"
    figures = json.loads(kept.read_text())
    kept.write_text(json.dumps(figures | {"acc1": 0.125, "fit_s": 3.0, "docs_per_s": 500.0}))
    beside = {"fit_s": 6.0, "acc1": 0.5, "acc5": 0.5, "loglik": None, "docs_per_s": 1000.0}
    beside |= {"model_mb": 1.0, "peak_gb": 1.0}
    (kept.parent / "single-pecos.json").write_text(json.dumps(beside))
    again = last_line("--out", str(tmp_path))
    assert again["acc1"] == 0.125
    assert again["fit_over_pecos"] == again["docs_per_s_over_pecos"] == 0.5
    assert again["p1"] == result["p1"]


def test_without_the_peers_it_says_what_to_do(
    tmp_path: Path, load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load("text_peers")
    monkeypatch.setattr(script, "ENVIRONMENT", tmp_path / "none")
    monkeypatch.setattr(sys, "argv", ["text_peers.py", "--data", str(tmp_path)])
    with pytest.raises(SystemExit, match="make bench-peers"):
        script.main()


def test_rows_are_the_known_words_and_unseen_classes_have_no_number(
    tmp_path: Path, load: Any
) -> None:
    script, measure = load("text_peers"), load("measure")
    train = script.Texts(
        [f"Common common rare{i}" for i in range(6)] + ["other"] * 5,
        ["b"] * 6 + ["a"] * 5,
        [["b", "c"]] * 6 + [["a"]] * 5,
    )
    test = script.Texts(["COMMON rare0 other"], ["z"], [["b", "z"]])
    names = {"z": "other", "c": "common Rare0", "a": "unknown", "b": "other common"}
    script.prepare(tmp_path / "rows", train, test, names)
    rows = measure.Rows(tmp_path / "rows", "single")
    assert rows.train.shape == (11, 2)
    assert sorted(rows.words("train")) == ["common common"] * 6 + ["other"] * 5
    assert rows.words("test") == ["common other"]
    assert rows.test.nnz == 2
    # Rows, words and labels are shuffled alike.
    for words, row, label in zip(rows.words("train"), rows.train, rows.classes, strict=True):
        assert words.split()[0] == ("common" if row.indices[0] == 0 else "other")
        assert label == (1 if words.startswith("common") else 0)
    assert rows.words("train") != ["common common"] * 6 + ["other"] * 5
    assert rows.test_classes.tolist() == [-1]
    assert rows.test_labels.nnz == 0
    # Of names, those of training labels that have known words; "c" is a label of several only.
    assert rows.named.tolist() == [1]
    assert rows.names.getnnz(1).tolist() == [2]
    several = measure.Rows(tmp_path / "rows", "all")
    assert several.named.tolist() == [2, 1]
    assert several.names.getnnz(1).tolist() == [1, 2]
    assert several.labels.shape == (11, 4)
    assert several.labels.nnz == 17
    assert several.test_labels.indices.tolist() == [1, 3]


class Judged:
    """Rows with a truth only."""

    def __init__(self, truth: np.ndarray, classes: np.ndarray | None) -> None:
        self.test_labels, self.test_classes = sparse.csr_matrix(truth), classes


def test_unseen_classes_are_wrong_and_missing_predictions_too(load: Any) -> None:
    measure = load("measure")
    classes = np.array([2, -1, 0, 1])
    rows = Judged(measure.indicators(classes, 3), classes)
    # Label 3 of the second row is none: it must not be read as label 0 of the third.
    ranked = [[2, 1, 0], [3, 0, 2], [1, 0], []]
    found = measure.judged(rows, measure.matrix(ranked), np.log([0.5, 0.25, 0.25]))
    assert found["acc1"] == 1 / 4
    assert found["acc5"] == 2 / 4
    assert found["loglik"] == pytest.approx(math.log(1 / 32) / 3)


def test_precision_counts_right_labels_among_k(load: Any) -> None:
    measure, random = load("measure"), np.random.default_rng(0)
    truth = random.random((40, 12)) < 0.3
    top = np.array([random.permutation(12)[:5] for _ in range(40)])
    found = measure.judged(Judged(truth, None), top, None)
    for k in (1, 3, 5):
        right = sum(bool(truth[i, y]) for i in range(40) for y in top[i, :k])
        assert found[f"p{k}"] == pytest.approx(right / (40 * k))


def test_paths_of_the_huffman_tree(load: Any) -> None:
    """As short as Huffman's on average, and their probabilities sum to one."""
    peer, random = load("fasttext_"), np.random.default_rng(0)
    counts = np.sort(random.integers(1, 50, 30))[::-1]
    nodes, signs = peer.huffman_paths(counts)
    heap = counts.tolist()
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:
        joined = heapq.heappop(heap) + heapq.heappop(heap)
        total += joined
        heapq.heappush(heap, joined)
    assert (counts * np.abs(signs).sum(1)).sum() == total
    weights, hidden = random.standard_normal((30, 4)), random.standard_normal(4)
    each = peer.path_log_probs(np.tile(hidden, (30, 1)), weights, nodes, signs)
    assert np.exp(each).sum() == pytest.approx(1.0)


def test_a_contender_that_failed_has_a_row(load: Any) -> None:
    figures = {"fit_s": 12.0, "p1": 0.25, "docs_per_s": 2000.0}
    text = load("text_peers").table("all", {"extremax": figures, "pecos": None}, 7)
    assert "| extremax | 12 | 25.0% | 2,000 |" in text
    assert "| PECOS XR-Linear | failed |  |  |" in text
