"""Charts that show one of several cases at a time, from what is drawn of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ampbench.report.view import Chart, Choice, Rows
from ampbench.report.views.part import CHOICES, ROWS_OF_THE_PAGE


class Numbered(Protocol):
    """What can be chosen: numbered from 0, with a name."""

    @property
    def number(self) -> int:
        """Its number on the page."""

    @property
    def name(self) -> str:
        """What it is called."""


N = TypeVar("N", bound=Numbered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing(Generic[N]):
    """A chart in the making: its data are called `name`.

    `rows` returns what is drawn of a case ([]: it has no place in the chart), `said` what that shows, in words, and
    `chart` the chart of all choices and rows. The field `marked` of rows is what the legend lists.
    """

    name: str
    rows: Callable[[N], list[dict[str, Any]]]
    said: Callable[[N, Rows], str]
    chart: Callable[[Sequence[Choice], Rows], Chart]
    marked: str = "series"


def drawn(found: Sequence[N], *drawings: Drawing[N]) -> tuple[list[Chart], dict[str, Rows], list[str]]:
    """Return the charts of cases, their data, and which of very many cases have a place in them."""
    charts: list[Chart] = []
    datasets: dict[str, Rows] = {}
    left = 0
    for drawing in drawings:
        choices: list[Choice] = []
        rows: list[dict[str, Any]] = []
        for place, one in enumerate(found):
            if place >= CHOICES or len(rows) > ROWS_OF_THE_PAGE:
                left = max(left, len(found) - place)
                break
            if own := drawing.rows(one):
                value = str(one.number)
                present = list(dict.fromkeys(row[drawing.marked] for row in own if row[drawing.marked] is not None))
                choices.append(Choice(value=value, label=one.name, alt=drawing.said(one, own), marks=present))
                rows += [{"case": value, **row} for row in own]
        if choices:
            charts.append(drawing.chart(choices, rows))
            datasets[drawing.name] = rows
    said = [f"The charts have {len(found) - left:,} of {len(found):,}, the first ones."] if left else []
    return charts, datasets, said
