"""The section on trends: what is said of changes, the charts' rows, gaps, many series."""

from ampbench.report.material import Material
from ampbench.report.views import View, trends
from tests.report.materials import section_of


def made(given: Material) -> View:
    view = trends(given)
    assert view is not None
    return view


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
