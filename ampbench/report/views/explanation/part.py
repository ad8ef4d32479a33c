"""One part of the section, as data, and what the parts share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ampbench.report.view import Chart, Rows

LISTED = 200
"""So many rows a part has at most, the worst or the first; a page of 10,000 cases need not repeat them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the section: `id` is unique and names its block of the template, `content` is what that reads.

    `said` are its findings in sentences. `left_out` counts the rows that are not listed.
    """

    id: str
    title: str
    said: Sequence[str] = ()
    content: Mapping[str, Any] = field(default_factory=dict)
    left_out: int = 0
    charts: Sequence[Chart] = ()
    datasets: Mapping[str, Rows] = field(default_factory=dict)
