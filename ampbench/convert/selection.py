"""A stored run, and those of its cases that are to be converted."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ampbench import frames, keywords
from ampbench.errors import NothingToRunError
from ampbench.labels import case_labels
from ampbench.metrics import Column
from ampbench.store import StoredRun

Row = Mapping[str, Any]
"""One row of the run's frame: its columns by name, None where undefined."""


@dataclass(frozen=True, slots=True)
class Selected:
    """A run and the rows of the cases chosen from it, in the run's order.

    `columns` are the metrics chosen (None: all that the format tells), `names` what cases are called, by their ids.
    """

    stored: StoredRun
    rows: Sequence[Row]
    columns: Collection[str] | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> list[Row]:
        """The rows of the cases that are ok, in order."""
        return [row for row in self.rows if row["outcome"] == "ok"]

    def name(self, row: Row) -> str:
        """Return what a row's case is called: its id, unless it has another name."""
        return self.names.get(row["case_id"], row["case_id"])

    def defined(self, row: Row, columns: Iterable[Column]) -> Iterator[tuple[Column, float]]:
        """Yield those of the metrics `columns` that are chosen and finite in `row`, with the value in its base unit."""
        wanted = [column for column in columns if self.columns is None or column.name in self.columns]
        return defined(row, wanted)

    @property
    def timed(self) -> list[Row]:
        """Those of the measured rows that have rounds, which an imported run need not have."""
        owners = {each.case_id for each in self.stored.rounds if not each.control}
        return [row for row in self.measured if row["case_id"] in owners]


def select(
    stored: StoredRun, keyword: str = "", *, columns: Collection[str] | None = None, short: bool = False
) -> Selected:
    """Return the cases of a run whose id matches `keyword`, with the metrics `columns`; `short`: by `show`'s names.

    Raises `NothingToRunError` where none does, `UsageError` where the run only explains.
    """
    frames.require_measured(stored)
    rows = [row for row in frames.plain_rows(frames.run_frame(stored)) if keywords.matches(keyword, row["case_id"])]
    if not rows:
        said = f" that matches -k {keyword!r}" if keyword else ""
        raise NothingToRunError(f"run {stored.header.run} has no case{said}")
    names: dict[str, str] = {}
    if short:
        names = case_labels(stored.cases[row["case_id"]] for row in rows)
    return Selected(stored, rows, columns, names)


def defined(row: Row, columns: Iterable[Column]) -> Iterator[tuple[Column, float]]:
    """Yield each of the metrics `columns` that has a finite value in `row`, with the value in its base unit."""
    for column in columns:
        value = row[column.name]
        if value is not None and math.isfinite(value):
            yield column, value
