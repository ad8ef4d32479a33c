"""What a section of the page is, as data: what its template reads, and its charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Rows = Sequence[Mapping[str, Any]]
"""Rows of data for charts: plain values by name, None where undefined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One part of a chart's data that a reader may choose: the `value` of the field, and what it is called."""

    value: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: a Vega-Lite `spec` without data, size and theme, which `charts` adds.

    `id` is unique on the page, `alt` says in words what the chart shows and its main finding, for those who cannot see
    it. `dataset` names rows among `View.datasets`. Where `choose` names a field, only the rows with one value of it are
    drawn: the first of `choices`, and with JavaScript the one that the reader picks. `height` is in pixels: of the
    drawing or, where `lines` names a field, of each of the field's values, one under the other.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A section of the page: heading `title`, anchor `id`, `template` and the `content` that it reads by name."""

    id: str
    title: str
    template: str
    content: Mapping[str, Any] = field(default_factory=dict)
    charts: Sequence[Chart] = ()
    datasets: Mapping[str, Rows] = field(default_factory=dict)
