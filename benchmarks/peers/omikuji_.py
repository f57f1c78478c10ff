"""omikuji: a forest of Parabel's or Bonsai's trees."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from measure import THREADS, Rows
from omikuji import Model
from omikuji._libomikuji import ffi, lib
from sklearn.datasets import dump_svmlight_file


class Contender:
    def __init__(self, rows: Rows, parameters: dict[str, Any], model: Path) -> None:
        self.model, self.settings = model, Model.default_hyper_param()
        for name, value in parameters.items():
            setattr(self.settings, name, value)
        path = model.parent / "train.txt"
        # It does not read rows without a word.
        some = rows.train.getnnz(1) > 0
        train, labels = rows.train[some], rows.labels[some]
        with path.open("wb") as file:
            file.write(b"%d %d %d\n" % (*train.shape, labels.shape[1]))
            dump_svmlight_file(train, labels, file, multilabel=True)
        # What Model.train_on_data does, in two steps: reading the file is not fitting.
        self.pool = ffi.gc(lib.init_omikuji_thread_pool(THREADS), lib.free_omikuji_thread_pool)
        self.data = lib.load_omikuji_data_set(ffi.new("char[]", str(path).encode()), self.pool)
        test = rows.test
        self.rows = [
            list(zip(test.indices[a:b].tolist(), test.data[a:b].tolist(), strict=True))
            for a, b in zip(test.indptr[:-1], test.indptr[1:], strict=True)
        ]

    def fit(self) -> None:
        self.forest = Model(lib.train_omikuji_model(self.data, self.settings, self.pool))

    def save(self) -> None:
        self.forest.save(str(self.model))
        self.forest.init_prediction_thread_pool(THREADS)
        self.forest.densify_weights()

    def predict(self, k: int) -> list[list[tuple[int, float]]]:
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(lambda row: self.forest.predict(row, top_k=k), self.rows))

    def ranked(self, found: list[list[tuple[int, float]]]) -> list[list[int]]:
        return [[label for label, _ in row] for row in found]

    def log_probs(self) -> None:
        return None
