"""Sessions from tables of events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extremax.data import sessions_from_table
from extremax.errors import ArgumentError, DataError

NAMES = {"session": "who", "item": "what", "time": "when"}
COLUMNS: dict[str, list[Any]] = {
    "who": ["z", "y", "z", "y", "z", "x"],
    "what": [1, 2, 3, 4, 5, 6],
    "when": [9, 1, 3, 1, 3, 0],
}
#: By name of the session, then by time; 3 and 5 as well as 2 and 4 are simultaneous.
EXPECTED = [[6], [2, 4], [3, 5, 1]]


def test_a_dictionary_of_columns() -> None:
    assert sessions_from_table(COLUMNS, **NAMES) == EXPECTED
    arrays = {name: np.array(values) for name, values in COLUMNS.items()}
    assert sessions_from_table(arrays, **NAMES) == EXPECTED


@pytest.mark.parametrize(
    "times",
    [
        np.array(COLUMNS["when"], "datetime64[s]"),
        [f"2024-01-0{1 + t}T00:00" for t in COLUMNS["when"][1:]],
        np.array(COLUMNS["when"]) / 7,
    ],
    ids=["dates", "texts", "floats"],
)
def test_times_of_any_kind_that_sorts(times: Any) -> None:
    if len(times) < 6:
        times = ["2024-01-10T00:00", *times]
    assert sessions_from_table(COLUMNS | {"when": times}, **NAMES) == EXPECTED


def test_it_is_what_a_plain_loop_finds() -> None:
    rng = np.random.default_rng(0)
    columns = {
        "who": rng.integers(20, size=300),
        "what": rng.choice(["a", "b", "c"], 300),
        "when": rng.integers(10, size=300),
    }
    events = list(zip(*(columns[name].tolist() for name in ("who", "when", "what")), strict=True))
    expected = [
        [item for who, _, item in sorted(events, key=lambda event: event[1]) if who == one]
        for one in sorted(set(columns["who"].tolist()))
    ]
    assert sessions_from_table(columns, **NAMES) == expected


def test_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(COLUMNS, index=[5, 5, 4, 3, 2, 1])
    assert sessions_from_table(frame, **NAMES) == EXPECTED
    typed = frame.astype({"who": "category", "what": "Int64"})
    typed["when"] = pandas.to_datetime(typed["when"], unit="D", utc=True)
    assert sessions_from_table(typed, **NAMES) == EXPECTED
    for name in COLUMNS:
        broken = typed.copy()
        broken.loc[broken.index[2], name] = None
        with pytest.raises(ArgumentError, match=f"column '{name}' has no value in row 2"):
            sessions_from_table(broken, **NAMES)
    with pytest.raises(ArgumentError, match="'who' must have one dimension"):
        sessions_from_table(pandas.concat([frame, frame], axis=1), **NAMES)


def test_parquet(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table(COLUMNS | {"more": [[1]] * 6})
    table = table.set_column(0, "who", table.column("who").dictionary_encode())
    path = tmp_path / "events.parquet"
    pq.write_table(table, path, row_group_size=2)
    assert sessions_from_table(path, **NAMES) == EXPECTED
    assert sessions_from_table(str(path), **NAMES) == EXPECTED
    with pytest.raises(DataError, match="expected one column 'at', got 0; the columns are: who"):
        sessions_from_table(path, session="who", item="what", time="at")
    pq.write_table(pa.table(COLUMNS | {"what": [1, 2, None, 4, 5, 6]}), path)
    with pytest.raises(ArgumentError, match="column 'what' has no value in row 2"):
        sessions_from_table(path, **NAMES)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="cannot read parquet"):
        sessions_from_table(path, **NAMES)
    with pytest.raises(DataError, match="no such file"):
        sessions_from_table(tmp_path / "nothing.parquet", **NAMES)


WRONG: dict[str, tuple[Any, str]] = {
    "a missing column": ({"who": [], "what": []}, "no column 'when'; it has: who, what"),
    "no table": (3, "no column 'who'; it has: 3"),
    "a list": ([["a"]], "no column 'who'"),
    "lengths": (COLUMNS | {"what": [1]}, "same length, got 6, 1, 6"),
    "NaN": (COLUMNS | {"when": [0.0, float("nan")] * 3}, "'when' has no value in row 1"),
    "None": (COLUMNS | {"what": ["a", "b", None] * 2}, "'what' has no value in row 2"),
    "no time": (COLUMNS | {"when": np.array(["NaT"] * 6, "datetime64[s]")}, "'when' has no value"),
    "times of two kinds": (COLUMNS | {"when": ["a", 1] * 3}, "'when' cannot be sorted"),
    "sessions of lists": (COLUMNS | {"who": [{}] * 6}, "'who' cannot be used"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_table_of_events_is_refused(name: str) -> None:
    table, message = WRONG[name]
    with pytest.raises(ArgumentError, match=message):
        sessions_from_table(table, **NAMES)


def test_an_empty_table_has_no_sessions() -> None:
    assert sessions_from_table({"who": [], "what": [], "when": []}, **NAMES) == []
