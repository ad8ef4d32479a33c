"""Every surface shows the same verdict: status, code and number of every case of ten stored runs."""

import contextlib
import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ampbench
from ampbench.cli.main import main
from ampbench.cli.results import markdown_text, result_lines, run_rows
from ampbench.convert.parquet import cases_of
from ampbench.core.budget import Budget
from ampbench.judge import machines, verdict
from ampbench.judge.table import not_taken
from ampbench.pytest_plugin.summary import Seen
from ampbench.records.verdict import VERDICT_COLUMNS, Status, Verdict
from ampbench.report.material import material_of
from ampbench.report.views.cases import cases
from ampbench.show.markdown import escaped
from ampbench.show.rows import Row, grouped, passed_over, precision_label
from ampbench.show.wording import answer, verdict_words
from ampbench.store import StoredRun, read_run

ROOT = Path(__file__).parents[2]
RUNS = [
    ROOT / file
    for file in (
        "results/runs/20261121T031846Z-vm-ecda2f.jsonl",
        "results/runs/20261121T051801Z-vm-bb7c09.jsonl",
        "results/atlas/runs/20261123T075057Z-vm-e56cc3.jsonl.gz",
        "results/atlas/runs/20261123T110011Z-vm-45d872.jsonl.gz",
        "results/atlas/runs/20261123T140828Z-vm-ed1dbf.jsonl.gz",
        "tests/net/runs/plain.jsonl",
        "tests/net/runs/later.jsonl",
        "tests/net/runs/scripted-cuda.jsonl.gz",
        "tests/net/runs/scripted-xpu.jsonl.gz",
        "tests/net/runs/scripted-import.jsonl.gz",
    )
]
Told = dict[str, tuple[Any, ...]]
"""What a surface says of each case: its verdict, code, number and limit, evidence, and whether it is taken."""


def plain(value: Any) -> Any:
    """Return the value of a cell, whatever kind of table it is of."""
    text = "" if value is None else str(value)
    if text in ("", "nan"):
        return None
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text)
    except ValueError:
        return text


def told(rows: Iterator[Mapping[str, Any]] | list[Mapping[str, Any]] | list[Row]) -> Told:
    return {row["case_id"]: tuple(plain(row[name]) for name in VERDICT_COLUMNS) for row in rows}


def printed(*words: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["show", *words]) == 0
    return out.getvalue()


def data_of(path: Path, stored: StoredRun) -> Iterator[tuple[str, Told]]:
    """Yield what surfaces for machines say of every case."""
    yield "json", told(json.loads(printed(str(path), "--json")))
    yield "csv", told(list(csv.DictReader(io.StringIO(printed(str(path), "--format", "csv")))))
    yield "load", told(ampbench.load(path).to_dict("records"))
    columns = cases_of([path]).columns
    yield "parquet", told([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])
    (shown,) = material_of([stored]).shown
    yield "page", told(list(shown.whole.values()))
    document = machines.document([stored], Budget(), everything=True)
    yield "machines", told(list(document.rows()))


def cells_of(stored: StoredRun, rows: list[Row], words: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the cells of verdicts on surfaces for people, of every case that was measured."""
    for width in (80, 200):
        lines = [line.plain for line in result_lines(stored, rows, Budget(), width)]
        yield f"terminal, {width} wide", found_in(lines, rows, words)
    seen = Seen()
    seen._run = stored
    yield "pytest", found_in([line.plain for line in seen.lines(100)], rows, words)
    lines = [
        " ".join(cell.strip() for cell in line.strip("|").split("|"))
        for line in markdown_text(stored, rows, Budget()).splitlines()
        if line.startswith("|")
    ]
    yield "markdown", found_in(lines, rows, words, escaped)
    view = cases(material_of([stored]))
    assert view is not None
    lines = view.content["lines"]
    yield "page's table", {line.case.row["case_id"]: line.cells[-1].text for line in lines if line.cells}


def found_in(
    lines: list[str], rows: list[Row], words: Mapping[str, str], spelled: Callable[[str], str] = str
) -> dict[str, str]:
    """Return the words of each row that was measured where its line ends in them, else that line."""
    found, rest = {}, (line for line in lines if "failed: " not in line)
    for row in rows:
        if row["outcome"] == "ok":
            label = spelled(precision_label(row))
            line = next(line for line in rest if line.startswith(f"{label} "))
            own = words[row["case_id"]]
            found[row["case_id"]] = own if line.endswith(f" {spelled(own)}") else line
    return found


def differing(path: Path) -> set[str]:
    """Return the surfaces that say of any case what its verdict is not, or leave a case out."""
    stored = read_run(path)
    rows = run_rows(stored, Budget())
    true = told([{"case_id": one.case_id, **one.columns()} for one in verdict.verdicts_of(stored, Budget()).values()])
    measured = [row["case_id"] for row in rows if row["outcome"] == "ok"]
    wrong = set()
    for surface, said in data_of(path, stored):
        wanted = true if surface != "machines" else {case_id: true[case_id] for case_id in measured}
        wrong |= {surface} if said != wanted else set()
    shown = {case_id: dict(zip(VERDICT_COLUMNS, true[case_id], strict=True)) for case_id in measured}
    by_verdict = {case_id: verdict_words({"outcome": "ok", **columns}) for case_id, columns in shown.items()}
    for surface, cells in cells_of(stored, rows, by_verdict):
        wrong |= {surface} if cells != by_verdict else set()
    return wrong


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name.partition(".")[0])
def test_every_surface_shows_the_same_verdict_of_every_case(path: Path) -> None:
    assert differing(path) == set()


@pytest.mark.parametrize(
    ("module", "surfaces"),
    [
        ("ampbench.cli.results", {"json", "csv", "terminal, 80 wide", "terminal, 200 wide", "markdown"}),
        ("ampbench.report.material", {"page", "page's table"}),
        ("ampbench.pytest_plugin.summary", {"pytest"}),
        ("ampbench.judge.machines", {"machines"}),
    ],
)
def test_a_surface_that_shows_another_verdict_is_found(
    module: str, surfaces: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    true = verdict.verdicts_of

    def other(stored: StoredRun, *given: Any) -> Mapping[str, Verdict]:
        first = next(one for one in true(stored, *given).values() if one.status is Status.OK)
        return {**true(stored, *given), first.case_id: replace(first, status=Status.REFUSED, number=0.5)}

    monkeypatch.setattr(f"{module}.verdicts_of", other)
    assert differing(RUNS[5]) == surfaces


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name.partition(".")[0])
def test_what_is_wrong_and_faster_or_smaller_is_named_with_its_code(path: Path) -> None:
    stored = read_run(path)
    rows = run_rows(stored, Budget())
    takes = verdict.takes_of(stored, Budget(), verdict.trainings_beside(stored))
    text = " ".join(" ".join(line.plain for line in result_lines(stored, rows, Budget(), 100)).split())
    named = 0
    for group, members in grouped(rows).items():
        for row in passed_over(members):
            named += 1
            passed = takes[group].passed
            if passed is not None and row["case_id"] == passed.case_id:
                line = answer(takes[group].statement)
                assert f"{precision_label(row)} " in line
            else:
                line = not_taken(members, takes[group])
                assert verdict_words(row) in line
            assert " ".join(line.split()) in text
    assert named or path.name.startswith(("2026", "scripted"))
