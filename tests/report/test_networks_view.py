"""The section of a page of many networks or several machines: a row each, and what failed by reason."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup
from msgspec import structs

from ampbench.records.case import Case
from ampbench.report.material import Material, gather
from ampbench.report.networks import AT_ONCE, machines, networks
from ampbench.report.result import make_markdown
from ampbench.show.page import View
from ampbench.show.wording import answer
from ampbench.store import StoredRun, read_run
from tests.compared_runs import BF16, FP32, Times, environment, make_run
from tests.report.large_runs import write_zoo_run
from tests.report.materials import make_material, section_of
from tests.stored_runs import make_case, make_header


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return make_material(read_run(write_zoo_run(tmp_path_factory.mktemp("zoo"), networks=100)))


@pytest.fixture(scope="module")
def page(zoo: Material) -> BeautifulSoup:
    view = networks(zoo)
    assert view is not None
    return section_of(view, zoo)


def viewed(material: Material) -> View:
    view = networks(material)
    assert view is not None
    return view


def cells(material: Material, title: str) -> list[list[str]]:
    """Return the text of the rows of the table whose title begins so."""
    found = section_of(viewed(material), material).select("table")
    (table,) = [each for each in found if each.caption and each.caption.get_text().startswith(title)]
    return [[" ".join(cell.text.split()) for cell in row.select("th, td")] for row in table.select("tbody tr")]


def speeding(speeds: dict[str, float], precision: str = "bf16_pure", **header: Any) -> StoredRun:
    """Return a run of a workload for each of `speeds`, which `precision` reaches."""
    pairs: list[tuple[Case, list[float]]] = []
    for workload, speed in speeds.items():
        pairs += [(make_case("fp32", workload=workload), [1e-3] * 4)]
        pairs += [(make_case(precision, workload=workload), [1e-3 / speed] * 4)]
    return make_run(Times(*pairs), header=make_header(**header))


def measured(material: Material, phase: str) -> int:
    (shown,) = material.shown
    return len({row["workload"] for row in shown.rows if row["outcome"] == "ok" and row["phase"] == phase})


def test_every_network_has_a_row_in_its_phase(zoo: Material, page: BeautifulSoup) -> None:
    names = [row.td.get_text() for row in page.select("tbody tr") if row.td.get_text().startswith("timm:")]
    assert len(names) == measured(zoo, "inference") + measured(zoo, "training")


def test_long_tables_are_folded_behind_their_first_rows(page: BeautifulSoup) -> None:
    tables = page.select("table")
    assert all(len(table.select("tbody tr")) <= AT_ONCE for table in tables if table.find_parent("details") is None)
    assert any(one.get_text().endswith(" more") for one in page.select("summary"))


def test_every_table_has_a_label_of_its_own(page: BeautifulSoup) -> None:
    labels = [one["aria-label"] for one in page.select("[role=region]")]
    assert len(labels) == len(set(labels)) > 2


def test_networks_have_codes_and_folded_sentences(zoo: Material, readme_run: Material) -> None:
    view, few = networks(zoo), viewed(readme_run)
    assert view is not None
    assert "no gain" in section_of(view, zoo).get_text()
    text = " ".join(section_of(few, readme_run).get_text(" ").split())
    for take in readme_run.shown[0].advice.values():
        assert answer(take.statement) in text
    assert "speedup_vs_fp32" not in text
    assert "for this CPU" not in text  # which the top of the page says


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
    names = {row.td.get_text() for row in page.select("table")[0].select("tbody tr")}
    assert len(names) == 2
    tables = [one for one in page.select("table") if one.select("thead th")[1].get_text() == "machine"]
    assert {row.select("td")[1].get_text() for one in tables for row in one.select("tbody tr")} == names


def test_runs_of_different_networks_are_one_table_and_no_history(tmp_path: Path) -> None:
    for library in ("timm", "torchvision"):
        write_zoo_run(tmp_path, networks=30, run=f"2026013{len(library) % 2}T120000Z-{library}", library=library)
    material = gather([str(tmp_path)], tmp_path)
    view = networks(material)
    assert view is not None
    first = section_of(view, material).select("table")[0]
    assert {row.td.get_text().partition(":")[0] for row in first.select("tbody tr")} == {"timm", "torchvision"}
    assert material.trends == []


def test_a_row_and_a_precision_have_their_numbers() -> None:
    material = make_material(speeding({"one": 1.0, "two": 2.0, "four": 4.0}))
    assert [row[:3] for row in cells(material, "take bf16_pure for 2 of 3")] == [
        ["four", "bf16_pure", "4.00x (4.00–4.00)"],
        ["two", "bf16_pure", "2.00x (2.00–2.00)"],
        ["one", "fp32", "1.00x"],
    ]
    assert cells(material, "what each precision brought")[0][:4] == [
        "bf16_pure", "2", "3 of 3", "2.00x (0.36–11.19)",
    ]  # fmt: skip


def test_torch_versions_are_never_put_together() -> None:
    newer = environment(make_header(run="b"), torch_version="2.16.0")
    second = replace(speeding({"two": 4.0}), header=newer)
    assert len(machines(make_material(speeding({"one": 2.0}), second))) == 2


def test_what_sweeps_say_is_said() -> None:
    selection = structs.replace(make_header().selection, sweeps={"batch_size": [1, 8]})
    pairs = [
        (make_case(name, batch_size=size), [1e-3 / speed] * 4)
        for size, speed in ((1, 0.5), (8, 2.0))
        for name, speed in (("fp32", 1.0), ("bf16_pure", speed))
    ]
    run = make_run(Times(*pairs), header=make_header(selection=selection))
    material = make_material(run)
    text = section_of(viewed(material), material).text
    assert "by batch_size, linear_chain inference eager on cpu: 1 fp32, 8 bf16_pure" in text


def test_machines_have_a_row_each() -> None:
    other = environment(make_header(run="b"), host="elsewhere", cpu="Xeon")
    material = make_material(speeding({"one": 2.0}), replace(speeding({"one": 4.0}), header=other))
    assert [row[:4] for row in cells(material, "take")] == [
        ["one", "elsewhere", "bf16_pure", "best"], ["one", "bench", "bf16_pure", ""],
    ]  # fmt: skip


def test_without_a_measured_case_there_is_no_section() -> None:
    assert networks(make_material(StoredRun(path=Path("run.jsonl"), header=make_header()))) is None
    assert networks(make_material(make_run(Times((FP32, []))))) is None


def test_a_run_without_fp32_has_errors() -> None:
    material = make_material(make_run(Times((BF16, [1e-3] * 4))))
    (row,) = cells(material, "what each precision brought")
    assert (row[0], row[3], row[-1]) == ("bf16_autocast", "", "4.0e-03")
