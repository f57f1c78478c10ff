"""Cost of a hundred times as many classes: fit time per example, prediction time per document.

The data are synthetic texts over 10⁴, 10⁵ and 10⁶ classes. The language is the same at every size:
100,000 words by Zipf's law, ten words per document. A hundred classes share a topic of 40 of the
rarer words, and each class has four of these words. A word of a document is one of its class with
probability 0.5, one of its topic with probability 0.2, or any word. Class sizes follow a power law,
with at least one document per class. Rows are TF-IDF vectors of unit length.

Every size is fitted to the same number of documents, two per class at the largest size, so fixed
costs of a fit are the same at each. As a consequence, a class has 200 documents at the smallest
size and two at the largest, and accuracy, which is shown beside the times, falls also for lack of
examples. Accuracy is measured on new documents, so that a fast model that has learned nothing would
be noticed.

``fit_growth`` and ``predict_growth`` are the times at the largest number of classes divided by
those at the smallest; prediction is of five classes per document, the best of three runs. Kernels
are compiled before.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np
from _common import finish, say, timed
from scipy import sparse

from extremax import ExtremeClassifier

CLASSES, ROWS, TEST_ROWS = (10_000, 100_000, 1_000_000), 2_000_000, 20_000
QUICK = (100, 1_000), 4_000, 1_000
N_WORDS, WORDS_PER_ROW = 100_000, 10
# The rank of the most common word of a topic.
COMMON = 1_000
CLASSES_PER_TOPIC, WORDS_PER_TOPIC, WORDS_PER_CLASS, K = 100, 40, 4, 5


class Text:
    """Random documents of ``n_classes`` classes."""

    def __init__(self, n_classes: int) -> None:
        self.n_classes = n_classes
        self.generator = generator = np.random.default_rng(n_classes)
        n_topics = -(-n_classes // CLASSES_PER_TOPIC)
        # The tail of Zipf's law: the logarithm of the rank of a word is uniform.
        rank = COMMON * (N_WORDS / COMMON) ** generator.random((n_topics, WORDS_PER_TOPIC))
        self.topic_words = rank.astype(np.int32)
        own = generator.integers(WORDS_PER_TOPIC, size=(n_classes, WORDS_PER_CLASS))
        topic = np.arange(n_classes)[:, None] // CLASSES_PER_TOPIC
        self.class_words = self.topic_words[topic, own]
        # Class numbers determine topics, so sizes must not depend on class numbers.
        self.by_size = generator.permutation(n_classes)

    def labels(self, n: int) -> np.ndarray:
        """Each class once, then classes by a power law of their rank by size."""
        rank = self.n_classes ** self.generator.random(max(n - self.n_classes, 0))
        others = self.by_size[rank.astype(np.int64) - 1]
        once = self.generator.permutation(self.n_classes)[:n]
        return self.generator.permutation(np.concatenate([once, others]))

    def words(self, labels: np.ndarray) -> np.ndarray:
        """The words of one document per label."""
        shape, pick = (len(labels), WORDS_PER_ROW), self.generator.integers
        own = self.class_words[labels[:, None], pick(WORDS_PER_CLASS, size=shape)]
        topic = labels[:, None] // CLASSES_PER_TOPIC
        near = self.topic_words[topic, pick(WORDS_PER_TOPIC, size=shape)]
        any_word = (N_WORDS ** self.generator.random(shape)).astype(np.int32) - 1
        kind = self.generator.random(shape)
        return np.where(kind < 0.5, own, np.where(kind < 0.7, near, any_word))


def counts(words: np.ndarray) -> sparse.csr_matrix:
    ends = np.arange(0, words.size + 1, words.shape[1])
    ones = np.ones(words.size, np.float32)
    rows = sparse.csr_matrix((ones, words.ravel(), ends), shape=(len(words), N_WORDS))
    rows.sum_duplicates()
    return rows


def weigh(rows: sparse.csr_matrix, idf: np.ndarray) -> sparse.csr_matrix:
    """Counts times idf, each row of unit length."""
    rows.data *= idf[rows.indices]
    ends = np.concatenate([[0.0], np.cumsum(np.square(rows.data, dtype=np.float64))])
    length = np.sqrt(ends[rows.indptr[1:]] - ends[rows.indptr[:-1]]).astype(np.float32)
    rows.data /= np.repeat(length, np.diff(rows.indptr))
    return rows


def problem(
    n_classes: int, n: int, n_test: int
) -> tuple[sparse.csr_matrix, np.ndarray, sparse.csr_matrix, np.ndarray]:
    text = Text(n_classes)
    labels = text.labels(n)
    # Classes of test documents are drawn from the training labels, so none is new.
    test_labels = text.generator.choice(labels, n_test)
    train, test = counts(text.words(labels)), counts(text.words(test_labels))
    documents = np.bincount(train.indices, minlength=N_WORDS)
    idf = (1 + np.log((1 + n) / (1 + documents))).astype(np.float32)
    return weigh(train, idf), labels, weigh(test, idf), test_labels


def measure(n_classes: int, n: int, n_test: int) -> dict[str, Any]:
    rows, labels, test, test_labels = problem(n_classes, n, n_test)
    model = ExtremeClassifier(random_state=0, n_jobs=2)
    fit_seconds = timed(lambda: model.fit(rows, labels))
    seconds = min(timed(lambda: model.predict_topk(test, K)) for _ in range(3))
    hits = model.predict_topk(test, K).labels == test_labels[:, None]
    figures = {
        "fit_us_an_example": 1e6 * fit_seconds / len(labels),
        "predict_us_a_document": 1e6 * seconds / n_test,
        "accuracy": float(hits[:, 0].mean()),
        "accuracy_at_5": float(hits.any(1).mean()),
        "fit_s": fit_seconds,
        "documents_of_the_largest_class": int(np.bincount(labels).max()),
    }
    say(
        f"C = {n_classes:,}: fit {figures['fit_us_an_example']:.1f} µs per example, "
        f"prediction {figures['predict_us_a_document']:.1f} µs per document, "
        f"accuracy {figures['accuracy']:.2%}"
    )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 and 1,000 classes")
    given = parser.parse_args()
    given.busy_before = os.getloadavg()[0]
    classes, n, n_test = QUICK if given.quick else (CLASSES, ROWS, TEST_ROWS)
    rows, labels, *_ = problem(300, 2_000, 10)
    ExtremeClassifier(random_state=0, n_jobs=2).fit(rows, labels).predict_topk(rows[:200], K)
    figures = {str(c): measure(c, n, n_test) for c in classes}
    first, last = (figures[str(c)] for c in (classes[0], classes[-1]))
    growth = {
        "fit_growth": last["fit_us_an_example"] / first["fit_us_an_example"],
        "predict_growth": last["predict_us_a_document"] / first["predict_us_a_document"],
    }
    say(", ".join(f"{key} {value:.2f}" for key, value in growth.items()))
    sizes = {"rows": n, "classes": classes, "features": N_WORDS, "test_rows": n_test}
    finish(given, growth, figures, sizes)


if __name__ == "__main__":
    main()
