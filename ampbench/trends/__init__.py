"""Runs in order: series over torch versions, commits or dates, and where they changed.

`read_runs` takes what a user names, `make_trend` puts the runs on an axis and looks for changes; `Trend` holds all that
tables and reports show. docs/trends.md has the rules.
"""

from ampbench.trends.axes import AXES
from ampbench.trends.building import make_trend, place_of
from ampbench.trends.metrics import TRACKED, tracked
from ampbench.trends.reducing import RunValues
from ampbench.trends.series import Change, Lost, Measured, Place, Point, Rule, Series, Shift, Trend, X
from ampbench.trends.sources import Sources, read_runs

__all__ = [
    "AXES",
    "TRACKED",
    "Change",
    "Lost",
    "Measured",
    "Place",
    "Point",
    "Rule",
    "RunValues",
    "Series",
    "Shift",
    "Sources",
    "Trend",
    "X",
    "make_trend",
    "place_of",
    "read_runs",
    "tracked",
]
