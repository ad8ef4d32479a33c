"""The section of a page of many networks or several machines: a row each, and what failed by reason."""

from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from ampbench.report.markdown import make_markdown
from ampbench.report.material import Material, gather
from ampbench.report.views.networks import AT_ONCE, networks
from ampbench.report.views.precisions import precision_tables, precisions
from ampbench.store import read_run
from tests.report.large_runs import write_zoo_run
from tests.report.materials import make_material, section_of


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return make_material(read_run(write_zoo_run(tmp_path_factory.mktemp("zoo"), networks=100)))


@pytest.fixture(scope="module")
def page(zoo: Material) -> BeautifulSoup:
    view = networks(zoo)
    assert view is not None
    return section_of(view, zoo)


def measured(material: Material, phase: str) -> int:
    (shown,) = material.shown
    return len({row["workload"] for row in shown.rows if row["outcome"] == "ok" and row["phase"] == phase})


def test_a_run_of_few_networks_has_no_section_of_them(readme_run: Material) -> None:
    assert networks(readme_run) is None


def test_every_network_has_a_row_in_its_phase(zoo: Material, page: BeautifulSoup) -> None:
    rows = [row.find("th") for table in page.select("table.ranking") for row in table.select("tbody tr")]
    names = [cell.get_text() for cell in rows if cell is not None and cell.get_text().startswith("timm:")]
    assert len(names) == measured(zoo, "inference") + measured(zoo, "training")


def test_long_tables_are_folded_behind_their_first_rows(page: BeautifulSoup) -> None:
    tables = page.select("table.ranking")
    assert all(len(table.select("tbody tr")) <= AT_ONCE for table in tables if table.find_parent("details") is None)
    assert any(one.get_text().endswith(" more") for one in page.select("summary"))


def test_every_table_has_a_label_of_its_own(page: BeautifulSoup) -> None:
    labels = [one["aria-label"] for one in page.select("[role=region]")]
    assert len(labels) == len(set(labels)) > 3


def test_failures_are_told_by_reason_with_their_names(zoo: Material, page: BeautifulSoup) -> None:
    (shown,) = zoo.shown
    failed = dict.fromkeys(row["workload"] for row in shown.rows if row["outcome"] == "failed")
    (row,) = [row for row in page.select("tbody tr") if row.find("th").get_text() == "failed"]
    assert row.select("td")[-1].get_text() == ", ".join(failed)
    assert failed


def test_advice_and_its_chart_are_not_told_twice(zoo: Material, readme_run: Material) -> None:
    view, before = precisions(zoo), precisions(readme_run)
    assert view is not None
    assert before is not None
    assert [machine.advice for machine in precision_tables(zoo)] == [[]]
    assert not view.charts
    assert before.charts


def test_markdown_has_a_row_in_place_of_a_sentence_a_network(zoo: Material) -> None:
    said = make_markdown(zoo)
    assert "### Advice" not in said
    assert "### inference: take " in said
    assert "### without a result" in said
    assert len(said) < 65_536


def test_machines_are_told_apart(tmp_path: Path, zoo: Material) -> None:
    (shown,) = zoo.shown
    other = read_run(write_zoo_run(tmp_path, networks=30, run="other", threads=1))
    view = networks(make_material(shown.stored, other))
    assert view is not None
    page = section_of(view, zoo)
    names = {row.find("th").get_text() for row in page.select("table")[0].select("tbody tr")}
    assert len(names) == 2
    tables = [one for one in page.select("table.ranking") if one.select("thead th")[1].get_text() == "machine"]
    assert {row.select("td")[0].get_text() for one in tables for row in one.select("tbody tr")} == names


def test_runs_of_different_networks_are_one_table_and_no_history(tmp_path: Path) -> None:
    for library in ("timm", "torchvision"):
        write_zoo_run(tmp_path, networks=30, run=f"2026013{len(library) % 2}T120000Z-{library}", library=library)
    material = gather([str(tmp_path)], tmp_path)
    view = networks(material)
    assert view is not None
    first = section_of(view, material).select("table.ranking")[0]
    assert {cell.get_text().partition(":")[0] for cell in first.select("tbody th")} == {"timm", "torchvision"}
    assert material.trends == []
