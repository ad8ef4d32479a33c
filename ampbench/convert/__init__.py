"""Stored runs as other programs' formats, each a function from a run and its rows to text, and (`native`) the way back.

docs/convert.md says what each format keeps and loses.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ampbench.convert import formats, pytest_benchmark
from ampbench.errors import NothingToRunError
from ampbench.judge import frame
from ampbench.show.rows import Row
from ampbench.store import StoredRun


class Format(NamedTuple):
    """The function that writes a format, and whether the format has a place for a row."""

    write: Callable[[StoredRun, Sequence[Row]], str]
    keeps: Callable[[Row], bool] = lambda row: row["outcome"] == "ok"


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "junit": Format(formats.junit, lambda _: True),
        "github-smaller": Format(formats.github_smaller),
        "bencher": Format(formats.bencher),
        # an imported run may lack rounds
        "pytest-benchmark": Format(
            pytest_benchmark.run_json, lambda row: row["outcome"] == "ok" and row["rounds"] is not None
        ),
    }
)
"""The formats of one run by name."""


def written(stored: StoredRun, to: str) -> tuple[str, Counter[str]]:
    """Return a run in the format `to`, and how many cases the format has no place for, by their outcome.

    Raises `NothingToRunError` where the format has a place for none, `UsageError` for a run that only explains.
    """
    frame.require_measured(stored)
    rows = frame.run_rows(stored)
    kept = [row for row in rows if FORMATS[to].keeps(row)]
    outcomes = (row["outcome"] for row in rows if not FORMATS[to].keeps(row))
    lost = Counter("without rounds" if outcome == "ok" else outcome for outcome in outcomes)
    if not kept:
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(lost.items())) or "there is none"
        raise NothingToRunError(f"{to} has no place for any case of {stored.header.run}: {counts}; junit has all")
    return FORMATS[to].write(stored, kept), lost
