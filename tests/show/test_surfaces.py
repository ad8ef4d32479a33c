"""Every surface shows the same verdict: status, code and number of every case of ten stored runs."""

import contextlib
import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

import ampbench
from ampbench.cli.main import main
from ampbench.convert import cases_of
from ampbench.core.budget import Budget
from ampbench.judge import machines, verdict
from ampbench.pytest_plugin.measuring import table_lines
from ampbench.records.changes import VERDICT_COLUMNS, Status, Verdict
from ampbench.report.material import material_of
from ampbench.report.views import cases
from ampbench.result import Result
from ampbench.show.document import Section, escaped, markdown
from ampbench.show.results import Screen, sections
from ampbench.show.rows import Row, precision_label
from ampbench.show.terminal import section_lines
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
    yield "parquet", told(cases_of([path])[0].to_dict("records"))
    (shown,) = material_of([stored]).shown
    yield "page", told(shown.rows)
    document = machines.document([stored], Budget(), everything=True)
    yield "machines", told(list(document.rows()))


def tables_of(result: Result) -> list[Section]:
    """Return all tables of a run with their answers."""
    header, cases = result.stored.header, result.stored.cases
    return sections(Screen(header=header, cases=cases, rows=result.rows, takes=result.takes))


def cells_of(stored: StoredRun, result: Result, words: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the cells of verdicts on surfaces for people, of every case that was measured."""
    rows = result.rows
    for width in (80, 100, 200):
        lines = [line.plain for line in section_lines(tables_of(result), width)]
        yield f"terminal, {width} wide", found_in(lines, rows, words)
    yield "pytest", found_in([line.plain for line in table_lines(stored, 100)], rows, words)
    lines = [
        " ".join(cell.strip() for cell in line.strip("|").split("|"))
        for line in markdown(tables_of(result)).splitlines()
        if line.startswith("|")
    ]
    yield "markdown", found_in(lines, rows, words, escaped)
    view = cases(material_of([stored]))
    assert view is not None
    shown = [row for row in rows if row["outcome"] != "skipped"]
    (block,) = view.parts[0].blocks
    cells = zip(shown, block.rows, strict=True)
    yield "page's table", {row["case_id"]: line[-1] for row, line in cells if row["outcome"] == "ok"}


def found_in(
    lines: list[str], rows: Sequence[Row], words: Mapping[str, str], spelled: Callable[[str], str] = str
) -> dict[str, str]:
    """Return the words of each row that was measured where its line, and what folds below it, ends in them."""
    found, rest = {}, iter([*lines, ""])
    line = next(rest)
    for row in rows:
        if row["outcome"] == "ok":
            label = spelled(precision_label(row))
            while not line.startswith(f"{label} ") or "failed: " in line:
                line = next(rest)
            whole, line = line, next(rest)
            while line.startswith("  "):
                whole, line = f"{whole} {line}", next(rest)
            own = words[row["case_id"]]
            found[row["case_id"]] = own if " ".join(whole.split()).endswith(f" {spelled(own)}") else whole
    return found


def differing(path: Path) -> set[str]:
    """Return the surfaces that say of any case what its verdict is not, or leave a case out."""
    stored = read_run(path)
    result = Result(stored)
    true = told([{"case_id": one.case_id, **one.columns()} for one in verdict.verdicts_of(stored, Budget()).values()])
    measured = {row["case_id"]: row for row in result.rows if row["outcome"] == "ok"}
    wrong = set()
    for surface, said in data_of(path, stored):
        wanted = true if surface != "machines" else {case_id: true[case_id] for case_id in measured}
        wrong |= {surface} if said != wanted else set()
    shown = {case_id: dict(zip(VERDICT_COLUMNS, true[case_id], strict=True)) for case_id in measured}
    by_verdict = {case_id: verdict_words({**measured[case_id], **columns}) for case_id, columns in shown.items()}
    for surface, cells in cells_of(stored, result, by_verdict):
        wrong |= {surface} if cells != by_verdict else set()
    return wrong


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name.partition(".")[0])
def test_every_surface_shows_the_same_verdict_of_every_case(path: Path) -> None:
    assert differing(path) == set()


@pytest.mark.parametrize(
    ("module", "surfaces"),
    [
        (
            "ampbench.result",
            {
                *("json", "csv", "pytest", "markdown", "page", "page's table"),
                *(f"terminal, {width} wide" for width in (80, 100, 200)),
            },
        ),
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
def test_no_line_is_wider_than_the_terminal_and_what_to_take_is_said_of_every_table(path: Path) -> None:
    result = ampbench.open(path)
    lines = [line.plain for line in section_lines(tables_of(result), 80)]
    assert max(map(cell_len, lines)) <= 80
    text = " ".join(" ".join(lines).split()).lower()
    for take in result.takes.values():
        assert answer(take.statement).lower() in text
