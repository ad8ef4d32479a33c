"""The section of networks: what to take of each, of one machine or several."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup
from msgspec import structs

from ampbench.records.case import Case
from ampbench.report.material import Material, gather
from ampbench.report.views import AT_ONCE, networks, result
from ampbench.show.wording import answer
from ampbench.store import StoredRun, read_run
from tests.compared_runs import FP32, Times, environment, make_run
from tests.report.large_runs import write_zoo_run
from tests.report.materials import make_material, section_of
from tests.stored_runs import make_case, make_header


def page_of(material: Material) -> BeautifulSoup:
    view = networks(material)
    assert view is not None
    return section_of(view)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return make_material(read_run(write_zoo_run(tmp_path_factory.mktemp("zoo"), networks=100)))


@pytest.fixture(scope="module")
def page(zoo: Material) -> BeautifulSoup:
    return page_of(zoo)


def cells(material: Material, title: str) -> list[list[str]]:
    """Return the text of the rows of the table whose title begins so."""
    (table,) = [each for each in page_of(material).select("table") if each.caption.get_text().startswith(title)]
    return [[" ".join(cell.text.split()) for cell in row.select("td")] for row in table.select("tbody tr")]


def speeding(speeds: dict[str, float], precision: str = "bf16_pure", **header: Any) -> StoredRun:
    """Return a run of a workload for each of `speeds`, which `precision` reaches."""
    pairs: list[tuple[Case, list[float]]] = []
    for workload, speed in speeds.items():
        pairs += [(make_case("fp32", workload=workload), [1e-3] * 4)]
        pairs += [(make_case(precision, workload=workload), [1e-3 / speed] * 4)]
    return make_run(Times(*pairs), header=make_header(**header))


def test_every_network_has_a_row_in_its_phase_and_long_tables_are_folded(zoo: Material, page: BeautifulSoup) -> None:
    names = [row.td.get_text() for row in page.select("tbody tr") if row.td.get_text().startswith("timm:")]
    measured = {(row["workload"], row["phase"]) for row in zoo.rows if row["outcome"] == "ok"}
    assert len(names) == len(measured)
    tables = page.select("table")
    assert all(len(table.select("tbody tr")) <= AT_ONCE for table in tables if table.find_parent("details") is None)
    labels = [one["aria-label"] for one in page.select("[role=region]")]
    assert len(labels) == len(set(labels)) > 2


def test_few_networks_have_sentences_that_are_folded(readme_run: Material) -> None:
    text = " ".join(page_of(readme_run).get_text(" ").split())
    for take in readme_run.shown[0].result.takes.values():
        assert answer(take.statement) in text


def test_machines_have_a_row_each() -> None:
    other = environment(make_header(run="b"), host="elsewhere", cpu="Xeon")
    material = make_material(speeding({"one": 2.0}), replace(speeding({"one": 4.0}), header=other))
    assert [row[:4] for row in cells(material, "take")] == [
        ["one", "elsewhere", "bf16_pure", "best"], ["one", "bench", "bf16_pure", ""],
    ]  # fmt: skip


def test_runs_of_different_networks_are_one_table_and_no_history(tmp_path: Path) -> None:
    for library in ("timm", "torchvision"):
        write_zoo_run(tmp_path, networks=30, run=f"2026013{len(library) % 2}T120000Z-{library}", library=library)
    material = gather([str(tmp_path)], tmp_path)
    first = page_of(material).select("table")[0]
    assert {row.td.get_text().partition(":")[0] for row in first.select("tbody tr")} == {"timm", "torchvision"}
    assert material.trends == []


def test_a_network_of_two_torch_versions_has_the_names_of_its_runs() -> None:
    older = replace(speeding({"one": 2.0}), header=environment(make_header(run="a"), torch_version="2.14.0"))
    cases = [make_case(name, workload="one") for name in ("fp32", "bf16_autocast")]
    newer = make_run(Times(*((case, [1e-3] * 4) for case in cases)), header=make_header(run="b"))
    assert {row[0] for row in cells(make_material(older, newer), "take")} == {"one · a", "one · b"}


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


def test_the_take_at_each_value_of_a_sweep_stands_at_the_top() -> None:
    selection = structs.replace(make_header().selection, sweeps={"batch_size": [1, 8]})
    pairs = [
        (make_case(name, batch_size=size), [1e-3 / speed] * 4)
        for size, speed in ((1, 0.5), (8, 2.0))
        for name, speed in (("fp32", 1.0), ("bf16_pure", speed))
    ]
    warnings = result(make_material(make_run(Times(*pairs), header=make_header(selection=selection)))).warnings
    assert any("linear_chain inference eager on cpu: 1 fp32, 8 bf16_pure" in text for text in warnings)


def test_without_a_measured_case_there_is_no_section() -> None:
    assert networks(make_material(StoredRun(path=Path("run.jsonl"), header=make_header()))) is None
    assert networks(make_material(make_run(Times((FP32, []))))) is None
