"""The section of a page of many networks: one chart by their kinds, tables that unfold, what failed by reason."""

from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from ampbench.report.markdown import make_markdown
from ampbench.report.material import Material, gather
from ampbench.report.page import drawn
from ampbench.report.views.precisions import precision_tables, precisions
from ampbench.report.views.ranking import AT_ONCE, faster_said, ranking
from ampbench.store import read_run
from tests.report.large_runs import write_zoo_run
from tests.report.materials import make_material, section_of


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return make_material(read_run(write_zoo_run(tmp_path_factory.mktemp("zoo"), networks=100)))


@pytest.fixture(scope="module")
def page(zoo: Material) -> BeautifulSoup:
    view = ranking(zoo)
    assert view is not None
    return section_of(view, zoo)


def measured(material: Material, phase: str) -> int:
    (shown,) = material.shown
    return len({row["workload"] for row in shown.rows if row["outcome"] == "ok" and row["phase"] == phase})


def test_a_run_of_few_tables_has_no_ranking(readme_run: Material) -> None:
    assert ranking(readme_run) is None


def test_every_network_has_a_row_in_its_phase(zoo: Material, page: BeautifulSoup) -> None:
    rows = [row.find("th") for table in page.select("table.ranking") for row in table.select("tbody tr")]
    names = [cell.get_text() for cell in rows if cell is not None and cell.get_text().startswith("timm:")]
    assert len(names) == measured(zoo, "inference") + measured(zoo, "training")


def test_long_tables_are_folded_behind_their_first_rows(page: BeautifulSoup) -> None:
    tables = page.select("table.ranking")
    assert all(len(table.select("tbody tr")) <= AT_ONCE for table in tables if table.find_parent("details") is None)
    folded = [one.get_text() for one in page.select("summary")]
    assert any(text.endswith(" more") for text in folded)
    assert "by kind of network" in folded


def test_every_table_has_a_label_of_its_own(page: BeautifulSoup) -> None:
    labels = [one["aria-label"] for one in page.select("[role=region]")]
    assert len(labels) == len(set(labels)) > 5


def test_how_many_networks_are_faster_is_said_of_none_one_and_many() -> None:
    def said(*speeds: float) -> str:
        rows = [
            {"network": f"n{place}", "precision": "bf16_pure", "speed": speed, "safe": True, "said": f"{speed}x"}
            for place, speed in enumerate(speeds)
        ]
        return faster_said(rows)

    none = "Of 2 networks none is faster than fp32 in a precision that is safe."
    assert said(0.9, 1.0) == none
    assert said(0.9, 2.0).startswith("Of 2 networks 1 is faster than fp32 in a precision that is safe, most of all n1")
    assert said(3.0, 2.0).startswith("Of 2 networks 2 are faster than fp32 in a precision that is safe, most of all n0")


def test_failures_are_told_by_reason_with_their_names(zoo: Material, page: BeautifulSoup) -> None:
    (shown,) = zoo.shown
    failed = dict.fromkeys(row["workload"] for row in shown.rows if row["outcome"] == "failed")
    (table,) = [one for one in page.select("table") if one.caption and one.caption.get_text() == "failed"]
    (row,) = table.select("tbody tr")
    assert row.select("td")[-1].get_text() == ", ".join(failed)
    assert failed


def test_the_chart_has_a_point_for_every_precision_and_says_which_are_safe(zoo: Material) -> None:
    view = ranking(zoo)
    assert view is not None
    rows = view.datasets["ranking"]
    (shown,) = zoo.shown
    low = [one for one in shown.rows if one["outcome"] == "ok" and one["precision"] != "fp32"]
    assert len(rows) == len(low)
    overflow = {(one["workload"], one["precision"]) for one in low if one["output_nonfinite"]}
    assert overflow
    unsafe = {(row["network"], row["precision"]) for row in rows if not row["safe"]}
    assert overflow <= unsafe
    (chart,) = view.charts
    assert [one.label for one in chart.choices] == ["inference", "training"]
    first = {row["precision"] for row in rows if row["part"] == chart.choices[0].value}
    assert all(f">{name}<" in drawn(chart, rows) for name in first)


def test_advice_and_its_chart_are_not_told_twice(zoo: Material, readme_run: Material) -> None:
    view, before = precisions(zoo), precisions(readme_run)
    assert view is not None
    assert before is not None
    assert [machine.advice for machine in precision_tables(zoo)] == [[]]
    assert not view.charts
    assert before.charts


def test_markdown_has_the_ranking_in_place_of_a_sentence_a_network(zoo: Material) -> None:
    said = make_markdown(zoo)
    assert "### Advice" not in said
    assert "### which precision to take, what gains most first, inference" in said
    assert "### failed, by reason" in said
    assert len(said) < 65_536


def test_machines_are_told_apart(tmp_path: Path, zoo: Material) -> None:
    (shown,) = zoo.shown
    other = read_run(write_zoo_run(tmp_path, networks=30, run="other", threads=1))
    view = ranking(make_material(shown.stored, other))
    assert view is not None
    headings = [one.get_text() for one in section_of(view, zoo).select("h3")]
    assert len(set(headings)) == len(headings) > 4


def test_runs_of_different_networks_are_one_ranking_and_no_history(tmp_path: Path) -> None:
    for library in ("timm", "torchvision"):
        write_zoo_run(tmp_path, networks=30, run=f"2026013{len(library) % 2}T120000Z-{library}", library=library)
    material = gather([str(tmp_path)], tmp_path)
    view = ranking(material)
    assert view is not None
    first = section_of(view, material).select("table.ranking")[0]
    assert {cell.get_text().partition(":")[0] for cell in first.select("tbody th")} == {"timm", "torchvision"}
    assert material.trends == []
