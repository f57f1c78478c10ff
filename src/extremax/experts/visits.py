"""Items that are visited together: item-kNN as an expert.

    v_y(x) = Σ_i x_i s_iy,   s_ij = n_ij / √((n_i + 20)(n_j + 20)),

n_i the sequences in which item i was visited, n_ij those with both (Hidasi et al., "Session-based
recommendations with recurrent neural networks", 2016, who use the last item only); n_ii = n_i,
since items are visited again.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from extremax.experts.pairs import PairExpert
from extremax.rows import SequenceRows

# Added to the number of visits: lowers the similarity of rare items.
_SHRINK = 20.0


class VisitedTogether(PairExpert):
    """Numbers of sequences with pairs of items; on the diagonal with one item."""

    little = 1e-4

    def count(self, rows: SequenceRows, labels: np.ndarray, n_classes: int) -> sparse.csr_matrix:
        """Of a sequence, a pair counts where the later of the two is visited for the first time:
        there the other one is in the row, and the later one is its label. So every pair of a
        sequence counts once, whether or not its examples come in order."""
        row, items, _ = rows.visits()
        again = np.zeros(len(rows), bool)
        again[row[items == labels[row]]] = True
        shape = len(rows), n_classes
        new = ~again[row]
        visited = sparse.csr_matrix((np.ones(new.sum(), np.float32), (row[new], items[new])), shape)
        visited.data[:] = 1.0
        first = np.flatnonzero(~again)
        ones = np.ones(len(first), np.float32)
        follows = sparse.csr_matrix((ones, (first, labels[first])), shape)
        pairs = visited.T @ follows
        # A row of one item begins a sequence.
        begins = rows.sizes == 1
        starts = np.bincount(items[begins[row]], minlength=n_classes)
        alone = starts + np.bincount(labels[first], minlength=n_classes)
        return sparse.csr_matrix(pairs + pairs.T + sparse.diags(alone.astype(np.float32)))

    def compare(self) -> sparse.csr_matrix:
        scale = sparse.diags((self.numbers.diagonal() + _SHRINK) ** -0.5)
        return sparse.csr_matrix(scale @ self.numbers @ scale)
