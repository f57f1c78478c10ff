"""Answers class by class, against loops over rows."""

from __future__ import annotations

import csv
from collections import Counter

import numpy as np
import pytest
import torch

from extremax.evaluation import AnswerTally, Outcomes, write_by_class
from extremax.heads import Ranking
from extremax.labels import LabelLists

N_ROWS, N_CLASSES, K = 200, 12, 5


def random_outcomes(several: bool, seed: int = 0) -> Outcomes:
    """Rankings that are right about half of the time; some labels were never seen (−1)."""
    rng = np.random.default_rng(seed)
    ranked = np.stack([rng.permutation(N_CLASSES)[:K] for _ in range(N_ROWS)])
    truth = []
    for row in ranked:
        n_labels = int(rng.integers(0, 4)) if several else 1
        pool = np.concatenate([row[:2], [-1], rng.permutation(N_CLASSES)])
        truth.append(list(dict.fromkeys(rng.permutation(pool)[:n_labels].tolist())))
    marginals = -np.sort(-rng.random((N_ROWS, K)), axis=1)
    values = np.array([label for row in truth for label in row], np.int64)
    lists = LabelLists(values, np.cumsum([0, *map(len, truth)]))
    ranking = Ranking(torch.from_numpy(ranked), torch.from_numpy(np.log(marginals)))
    return Outcomes(ranking, lists, np.zeros(len(values)), marginals)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("threshold", [None, 0.5, 0.9])
def test_counts_are_those_of_a_loop(several, threshold):
    found = random_outcomes(several)
    tally = AnswerTally(N_CLASSES, threshold)
    half = N_ROWS // 2
    for part in (slice(0, half), slice(half, None)):
        tally.add(
            Outcomes(
                Ranking(found.ranking.labels[part], found.ranking.log_probs[part]),
                found.truth[np.arange(N_ROWS)[part]],
                np.zeros(0),
                found.marginals[part],
            )
        )
    support, given, correct, mistakes = Counter(), Counter(), Counter(), Counter()
    rows = answered = labels = 0
    for ranked, probabilities, truth in zip(
        found.ranking.labels.tolist(), found.marginals, found.truth.tolist(), strict=True
    ):
        if not truth:
            continue
        answers = ranked[:1]
        if threshold is not None:
            answers = [y for y, p in zip(ranked, probabilities, strict=True) if p >= threshold]
        rows, answered, labels = rows + 1, answered + bool(answers), labels + len(truth)
        support.update(y for y in truth if y >= 0)
        given.update(answers)
        correct.update(y for y in answers if y in truth)
        wrong = [y for y in answers if y not in truth]
        mistakes.update((y, wrong[0]) for y in truth if y >= 0 and y not in answers and wrong)
    assert (tally.rows, tally.answered, tally.labels) == (rows, answered, labels)
    for counted, array in (
        (support, tally.support), (given, tally.given), (correct, tally.correct),
    ):  # fmt: skip
        assert array.tolist() == [counted[y] for y in range(N_CLASSES)]
    assert tally.mistakes == mistakes
    assert tally.recall == pytest.approx(sum(correct.values()) / labels)
    assert tally.precision == pytest.approx(sum(correct.values()) / sum(given.values()))


def test_the_file_has_the_classes_that_are_missed_most_first(tmp_path):
    tally = AnswerTally(4)
    # Five rows of "a\tb" (0): two right, two taken for 1, one for 3. One row of 1: right.
    truth = np.array([0, 0, 0, 0, 0, 1])
    answers = torch.tensor([[0], [0], [1], [1], [3], [1]])
    ranking = Ranking(answers, torch.zeros(6, 1))
    lists = LabelLists(truth, np.arange(7))
    tally.add(Outcomes(ranking, lists, np.zeros(6), np.ones((6, 1))))
    names = np.array(["a\tb", "c", "unused", "d"], object)
    assert write_by_class(tmp_path / "c.tsv", tally, names) == 3
    with open(tmp_path / "c.tsv", newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file, delimiter="\t")
    assert header[:6] == ["label", "support", "predicted", "correct", "precision", "recall"]
    assert lines[0] == ["a\tb", "5", "2", "2", "1.0000", "0.4000", "c", "2", "d", "1", "", ""]
    assert lines[1][:6] == ["c", "1", "3", "1", "0.3333", "1.0000"]
    assert lines[2][:6] == ["d", "0", "1", "0", "0.0000", ""]


def test_without_answers_there_is_no_precision():
    tally = AnswerTally(N_CLASSES, threshold=1.0)
    tally.add(random_outcomes(several=False))
    assert np.isnan(tally.precision)
    assert (tally.recall, tally.answered) == (0.0, 0)
