"""Foreign formats out of stored runs, and stored runs out of foreign formats.

A format is a row of `FORMATS` and a function that returns text; reading runs, comparing them and writing files is left
to those who call it (docs/convert.md says what each format keeps and loses). The way back is `native`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ampbench.convert import formats, pytest_benchmark
from ampbench.convert.formats import Selected, select
from ampbench.core.metrics import Column
from ampbench.records.changes import Comparison

__all__ = ["FORMATS", "Format", "Selected", "select"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format, by what it can tell.

    `of_run` writes one run, `of_comparison` two runs compared (None: the format cannot). `numbers_only` formats have no
    place for a case that failed or was skipped, `of_rounds` ones none for a case without rounds, which an imported run
    may have. `columns` are the metrics that can be chosen from; such a format can also call cases by short names.
    """

    name: str
    of_run: Callable[[Selected], str]
    of_comparison: Callable[[Comparison], str] | None = None
    numbers_only: bool = True
    columns: Sequence[Column] = ()
    of_rounds: bool = False


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        one.name: one
        for one in (
            Format(
                name="junit",
                of_run=formats.run_xml,
                of_comparison=formats.comparison_xml,
                numbers_only=False,
            ),
            Format(
                name="github-smaller",
                of_run=formats.smaller_json,
                columns=formats.SMALLER,
            ),
            Format(name="bencher", of_run=formats.run_json, columns=formats.MEASURES),
            Format(
                name="pytest-benchmark",
                of_run=pytest_benchmark.run_json,
                of_rounds=True,
            ),
        )
    }
)
"""The formats by name."""
