"""All studies alike: each is named by its row alone, has words for every code, and fits on a screen."""

import ast
from collections.abc import Iterator
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import ampbench
from ampbench import store, studies
from ampbench.records import kinds
from ampbench.records.kinds import KINDS
from ampbench.report.material import material_of
from ampbench.show.studies import TEMPLATES, document
from ampbench.show.terminal import document_lines
from ampbench.store import gathered
from ampbench.studies.study import Study, study_of
from tests.report.materials import part_of
from tests.stored_runs import make_case, make_header
from tests.studies.storage_passes import lossy_pass, storage_pass


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_finds_the_study_of_its_name(kind: str) -> None:
    assert isinstance(study_of(kind), Study)
    assert study_of(kind).kind == kind


PACKAGE = Path(ampbench.__file__).parent
STUDIES = {kind.study.partition(":")[0] for kind in KINDS.values()}
NAMES = {name for name, value in vars(kinds).items() if isinstance(value, str) and value in KINDS}
"""The constants that are names of kinds."""
NAMING = {
    "ab.py": "what an upgrade changed is seen in traces and probes of both arms",
    "judge/compare.py": "what changed between two runs is told by their traces and probes",
    "judge/gate.py": "a gate judges what changed in autocast's rules",
    "judge/verdict.py": "advice goes by trainings that were studied, and by what the precision's range allows",
    "judge/frame.py": "ceiling_share is a column of runs that measured",
    "store/folder.py": "studies of trainings in the same folder outweigh one step",
    "cli/run.py": "ceilings that are known are copied into a run that measures",
    "cli/doctor.py": "what ceilings showed stands for what a CPU's flags suggest, and says what products run through",
    "cli/studies.py": "a line points to the check that looks for what befell a case",
    "watching/__init__.py": "a watch makes runs of its kind, in no worker",
    "watching/updates.py": "a watch makes the records of its runs",
    "result.py": "a line points to the check that looks for what befell a case",
}
"""The modules outside the studies that name one, and why."""


def named_in(path: Path) -> Iterator[str]:
    """The studies that a module imports, and the constants of kinds."""
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or "", *(f"{node.module}.{one.name}" for one in node.names)]
        for module in modules:
            if module in STUDIES:
                yield module
            head, _, rest = module.partition("ampbench.records.kinds.")
            if not head and rest in NAMES:
                yield module


def test_no_module_names_a_kind_of_run_but_for_these() -> None:
    others = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "studies" not in path.parents]
    found = {str(path.relative_to(PACKAGE)): sorted(set(named_in(path))) for path in others}
    assert {name for name, seen in found.items() if seen} == set(NAMING), found


MODULES = [import_module(f"ampbench.studies.{each.name}") for each in iter_modules(studies.__path__)]
CODES = {
    str(code)
    for module in MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, StrEnum) and kind.__module__ == module.__name__
    for code in kind
    if "-" in code
}


def test_codes_and_words_are_the_same() -> None:
    assert set(TEMPLATES) == CODES, "TEMPLATES of show/studies.py has a line for each code, and no other"


def test_a_page_has_the_cases_with_problems_first() -> None:
    same, lossy = (make_case("bf16_autocast", workload=name, phase="training") for name in ("same", "lossy"))
    entries = [same, lossy, storage_pass(same), lossy_pass(lossy)]
    run = gathered(Path("run.jsonl"), make_header(explains="input-storage"), entries)
    part = part_of("input-storage", material_of([], explanations=[run]))
    assert [detail.name for detail in part.details] == ["lossy bf16_autocast", "same bf16_autocast"]


FOLDER = Path(__file__).parents[1] / "net" / "runs"
RUNS = [path for path in sorted(FOLDER.glob("*.jsonl")) if store.read_header(path).explains]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_study_fits_on_a_screen(path: Path) -> None:
    stored = store.read_run(path)
    shown = document(study_of(stored.header.explains), stored, list(stored.cases))
    lines = [str(line) for line in document_lines(shown, 80)]
    lines += [line for code in shown.code for line in ["", code.title, *code.text.splitlines()]]
    assert len(lines) <= 38  # and two that name the run
    assert max(map(len, lines)) <= 80
    if "-v has the rest" in "".join(lines):
        whole = document(study_of(stored.header.explains), stored, list(stored.cases), everything=True)
        assert len(list(document_lines(whole, 80))) > len(lines)
