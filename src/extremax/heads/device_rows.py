"""Rows of training on a GPU: all of them where they fit, else each batch in its time.

What is expected (`RowsOnDevice.expect`) is read and sent by a thread of its own while the
device works on the one before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch

from extremax.rows import DenseRows, SparseRows
from extremax.rows.dense import row_blocks

# Share of the free memory of the device that rows may take.
_SHARE = 0.5


class DenseBatch(NamedTuple):
    """The rows features[rows[i]]."""

    features: torch.Tensor
    rows: torch.Tensor


class SparseBatch(NamedTuple):
    """The entries of some rows: the row in the batch, column and value of each; row i has those
    from offsets[i] on."""

    rows: torch.Tensor
    columns: torch.Tensor
    values: torch.Tensor
    offsets: torch.Tensor


def free_bytes(device: torch.device) -> int:
    """Memory of a device that is free; of the host, when kernels are interpreted, without end."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2**62


class RowsOnDevice(ABC):
    """Rows of training, for batches on a device.

    is_resident:  whether a batch can be had by the numbers of its rows on the device alone (`of`).
    """

    is_resident = False

    def of(self, numbers: torch.Tensor) -> Any:
        """The batch of some rows, for a graph that is replayed with other numbers."""
        raise NotImplementedError

    @abstractmethod
    def batches(self, numbers: np.ndarray, size: int) -> list[Any]:
        """The numbered rows in batches of some size, of which the last may be smaller."""

    def expect(self, numbers: np.ndarray) -> None:
        """These rows come next. Rows that are on the device need no preparation."""
        return


class DenseOnDevice(RowsOnDevice):
    """Dense rows, all of them on the device where they fit."""

    def __init__(self, rows: DenseRows, device: torch.device) -> None:
        self.rows, self.device = rows, device
        n, width = rows.shape
        self.is_resident = 4 * n * width <= _SHARE * free_bytes(device)
        self._features: torch.Tensor | None = None
        if self.is_resident:
            self._features = torch.empty((n, width), device=device)
            for start, block in row_blocks(rows.array):
                # Torch wants arrays that can be written, which maps of files may not be.
                block = np.require(block, requirements="W")
                self._features[start : start + len(block)].copy_(torch.from_numpy(block))
        else:
            # Copies have a stream of their own, so that they need not wait for training.
            self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="extremax-rows")
        self._expected: tuple[np.ndarray, Future[torch.Tensor]] | None = None

    def batches(self, numbers: np.ndarray, size: int) -> list[DenseBatch]:
        if self._features is None:
            features = self._streamed(numbers)
            rows = torch.arange(len(numbers), device=self.device)
        else:
            features, rows = self._features, torch.from_numpy(numbers).to(self.device)
        return [DenseBatch(features, part) for part in rows.split(size)]

    def of(self, numbers: torch.Tensor) -> DenseBatch:
        assert self._features is not None
        return DenseBatch(self._features, numbers)

    def _streamed(self, numbers: np.ndarray) -> torch.Tensor:
        expected, self._expected = self._expected, None
        if expected is not None and np.array_equal(expected[0], numbers):
            sent = expected[1].result()
        else:
            sent = self._read(numbers)
        if self._stream is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self._stream)
            sent.record_stream(current)
        return sent

    def expect(self, numbers: np.ndarray) -> None:
        if not self.is_resident and len(numbers):
            self._expected = numbers, self._reader.submit(self._read, numbers)

    def _read(self, numbers: np.ndarray) -> torch.Tensor:
        array = self.rows.array
        # In rising order: a map of a file is then read in one sweep.
        order = np.argsort(numbers)
        features = torch.empty((len(numbers), array.shape[1]), pin_memory=self._stream is not None)
        features.numpy()[order] = array[numbers[order]]
        if self._stream is None:
            return features
        with torch.cuda.stream(self._stream):
            return features.to(self.device, non_blocking=True)


class SparseOnDevice(RowsOnDevice):
    """Sparse rows, all of which the device has."""

    def __init__(self, rows: SparseRows, device: torch.device) -> None:
        self.device, self.indptr = device, rows.indptr
        self.columns = torch.from_numpy(rows.indices).to(device)
        self.values = torch.from_numpy(np.asarray(rows.values)).to(device)

    def batches(self, numbers: np.ndarray, size: int) -> list[SparseBatch]:
        # The host knows how many entries rows have: it need not wait for the device.
        counts = self.indptr[numbers + 1] - self.indptr[numbers]
        ends = np.concatenate([[0], np.cumsum(counts)])
        places = np.repeat(self.indptr[numbers] - ends[:-1], counts) + np.arange(ends[-1])
        rows = np.repeat(np.arange(len(numbers)) % size, counts)
        first = np.arange(0, len(numbers), size)
        offsets = ends[:-1] - np.repeat(ends[first], size)[: len(numbers)]
        on_device = [torch.from_numpy(part).to(self.device) for part in (places, rows, offsets)]
        sizes = np.diff(ends[np.append(first, len(numbers))]).tolist()
        return [
            SparseBatch(of_rows, self.columns[of_places].long(), self.values[of_places], of_offsets)
            for of_places, of_rows, of_offsets in zip(
                on_device[0].split(sizes), on_device[1].split(sizes), on_device[2].split(size),
                strict=True,
            )
        ]  # fmt: skip
