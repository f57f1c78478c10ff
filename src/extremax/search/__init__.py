"""Searches for the best classes of a row that do not score every class.

`Searcher` is the contract. `VectorSearcher` searches the vectors of a head by clusters of them; the
trees among the noises search themselves (`extremax.noise.tree_search`,
`extremax.noise.sparse_tree_search`), where their log q is part of the logits.
"""

from extremax.search.base import Candidates, Link, Searcher
from extremax.search.vectors import VectorSearcher

__all__ = ["Candidates", "Link", "Searcher", "VectorSearcher"]
