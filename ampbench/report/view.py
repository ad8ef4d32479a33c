"""What a section of the page is, as data: what its template reads, and its charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Rows = Sequence[Mapping[str, Any]]
"""Rows of data for charts: plain values by name, None where undefined; all rows of a dataset have the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One part of a chart's data that a reader may choose: the `value` of the field, and what it is called.

    `alt` says in words what the chart shows when it is chosen. `marks` are the names that its legends then list, of
    those that the chart has; (): all.
    """

    value: str
    label: str
    alt: str
    marks: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: a Vega-Lite `spec` without data, size and theme, which `charts` adds.

    `id` is unique on the page, `alt` says in words what the chart shows and its main finding, for those who cannot see
    it; of a chart with `choices` it says what holds whatever is chosen. `dataset` names rows among `View.datasets`.
    Where `choose` names a field, only the rows with one value of it are drawn: the first of `choices`, and with
    JavaScript the one that the reader picks. `height` is in pixels: of the drawing or, where `lines` names a field, of
    each of the field's values, one under the other.
    """

    id: str
    title: str
    alt: str
    spec: Mapping[str, Any]
    dataset: str
    height: int = 320
    lines: str = ""
    choose: str = ""
    choices: Sequence[Choice] = ()

    @property
    def words(self) -> str:
        """Return what the chart shows in words, as it is drawn first."""
        return " ".join(part for part in (*(one.alt for one in self.choices[:1]), self.alt) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A section of the page: heading `title`, anchor `id`, `template` and the `content` that it reads by name.

    Where it `leads` the page its template writes the heading, an h1 with the id `ID-title`; else the page does.
    Names in `content` must not hide what every template is given: `view`, `views`, `sections`, `figures`.
    """

    id: str
    title: str
    template: str
    content: Mapping[str, Any] = field(default_factory=dict)
    charts: Sequence[Chart] = ()
    datasets: Mapping[str, Rows] = field(default_factory=dict)
    leads: bool = False
