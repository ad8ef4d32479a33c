"""The section on trends: what is said of changes, the charts' rows, gaps, many series."""

from pathlib import Path
from typing import Any

from ampbench.judge.rounds import MeasuredRun
from ampbench.report.material import Material
from ampbench.report.views import View, trends
from ampbench.show.charts import PICTURED, Chart
from ampbench.store import gathered
from ampbench.trend import Change, Place, Point, Rule, Series, Trend, X
from ampbench.trend.values import Gap, Lack, Measured, tracked
from tests.report.materials import section_of
from tests.stored_runs import make_case, make_header

METRICS = {one.name: one for one in tracked()}
UNMEASURED = Gap(Lack.NOT_MEASURED)
RUN = MeasuredRun(gathered(Path("run.jsonl"), make_header(), []))
PLACE = Place(program="ampbench", host="bench", cpu="AMD EPYC", device="cpu", device_name="", threads=2)


def xs(count: int) -> list[X]:
    return [X(value=f"{number:040x}", label=f"c{number}") for number in range(count)]


def each(*values: float | None) -> list[Measured]:
    return [Measured(run=RUN, value=value) for value in values if value is not None]


def points(values: list[float | None], gap: Gap = UNMEASURED, **changes: Any) -> list[Point]:
    return [
        Point(x=x, value=value, each=each(value), gap=None if value is not None else gap, **changes)
        for x, value in zip(xs(len(values)), values, strict=True)
    ]


def change(number: int, direction: Any = "regressed", **changes: Any) -> Change:
    all_x = xs(number + 1)
    fields: dict[str, Any] = {"before": 1e-3, "after": 1.2e-3, "ratio": 1.2, "low": 1.15, "high": 1.25}
    return Change(x=all_x[number], last=all_x[number - 1], direction=direction, **{**fields, **changes})


def series(values: list[float | None], metric: str = "time", workload: str = "net", **changes: Any) -> Series:
    case = make_case("bf16_pure", workload=workload)
    given = {"place": PLACE, "rule": Rule.EXACT, "points": points(values)} | changes
    return Series(case=case, metric=METRICS[metric], **given)


def material(*several: Series, axis: str = "commit", **changes: Any) -> Material:
    runs = dict.fromkeys((one.place for one in several), 3)
    return Material(trends=[Trend(axis=axis, series=several, runs=runs, **changes)])


def made(given: Material) -> View:
    view = trends(given)
    assert view is not None
    return view


def rows_of(chart: Chart) -> list[dict[str, Any]]:
    """Return the rows of the first picture of a chart."""
    return [dict(row) for row in chart.pictures[0].rows]


def test_the_real_history_shows_where_roi_head_changed_and_with_what(history: Material) -> None:
    view = made(history)
    page = section_of(view)
    said = page.find(id="trends").get_text(" ", strip=True)
    assert "6 changes in 3 series: 3 regressed (time 3), 3 improved (time 3)" in said
    assert "190 series of 55 cases over torch version: 2.11.0 → 2.15.0" in said
    assert "measured in turns: a drift of the machine" in said
    assert "2.12.1: torch 2.11.0" in said
    assert "2.14.1: torch 2.13.0" in said
    changes = page.select_one("#trends table")
    cells = [cell.get_text(" ", strip=True) for cell in changes.tbody.tr.find_all(["th", "td"])]
    assert cells[:3] == ["2.12.1", "roi_head bf16_pure inference", "time"]
    assert cells[3].startswith("+18% (")


def test_the_history_draws_the_series_that_changed_first_over_the_versions_in_their_order(history: Material) -> None:
    view = made(history)
    chart = next(one for one in view.charts if one.id == "trends-torch_version-time")
    assert chart.pictures[0].label == "roi_head fp32 inference"
    assert len(chart.pictures) == PICTURED
    rows = rows_of(chart)
    assert [row["x"] for row in rows] == ["2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"]
    assert [row["change"].partition(" ")[0] for row in rows] == ["", "regressed", "", "improved", ""]
    assert rows[1]["text"].startswith("1.37 ms (")
    assert rows[1]["text"].endswith(", 2 runs")
    assert all(row["low"] < row["value"] < row["high"] for row in rows)
    assert chart.pictures[0].alt.startswith("roi_head fp32 inference. Regressed at 2.12.1, +17%")
    assert chart.alt == "3 of 55 series changed."
