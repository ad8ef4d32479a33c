"""Runs in order: series over torch versions, commits or dates, and where they changed.

`read_runs` takes what a user names, `make_trend` puts the runs on an axis and looks for changes; `Trend` holds all that
tables and reports show. docs/trends.md has the rules.
"""

from ampbench.trend.building import AXES, make_trend, place_of
from ampbench.trend.reducing import RunValues, Sources, read_runs
from ampbench.trend.series import TRACKED, Change, Lost, Measured, Place, Point, Rule, Series, Shift, Trend, X, tracked

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
