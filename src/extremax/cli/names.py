"""The file of label texts that ``extremax train`` takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremax.cli.options import TEXTS, option
from extremax.errors import DataError

if TYPE_CHECKING:
    from extremax.data import Dataset


@dataclass(frozen=True, kw_only=True)
class Names:
    """What labels are called."""

    label_texts: Path | None = option(
        None,
        "Texts: a file of label<TAB>text lines, such as names of subjects. Each text becomes one "
        "more training row with its label, which may have no other.",
        metavar="FILE",
        panel=TEXTS,
    )

    def read(self, data: Dataset) -> dict[Any, str] | None:
        """The text of each label, for training on these rows; None without a file."""
        from extremax.data.streams import text_lines

        if self.label_texts is None:
            return None
        if data.kind != "text":
            message = f"applies to texts, but these rows are {data.table.name}"
            raise DataError(f"--label-texts {message}; omit --label-texts", data.source[0])
        texts: dict[Any, str] = {}
        for number, line in text_lines(self.label_texts):
            if not line.strip():
                continue
            name, tab, text = line.partition("\t")
            if not tab:
                message = f"expected label, TAB, text, got {line!r:.80} (--label-texts)"
                raise DataError(message, self.label_texts, number)
            label = self._label(name, data, number)
            if label in texts:
                message = f"label {name!r:.80} again (--label-texts)"
                raise DataError(message, self.label_texts, number)
            texts[label] = text
        return texts

    def _label(self, name: str, data: Dataset, number: int) -> Any:
        """The label of this name: a number, where those of the rows are numbers."""
        if data.label_values.dtype.kind not in "iu":
            return name
        try:
            return int(name)
        except ValueError as error:
            message = f"label {name!r:.80} is no number, as those of the rows are (--label-texts)"
            raise DataError(message, self.label_texts, number) from error
