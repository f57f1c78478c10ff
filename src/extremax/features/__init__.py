"""Features: the encoder, truncated SVD of sparse rows, whitened PCA, hashed text, sequences."""

from extremax.data.sequences import Sequences
from extremax.features.encoder import Encoder
from extremax.features.pca import WhitenedPCA
from extremax.features.svd import SparseSVD
from extremax.features.text import HashedText

__all__ = ["Encoder", "HashedText", "Sequences", "SparseSVD", "WhitenedPCA"]
