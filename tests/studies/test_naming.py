"""What rows name: each study is there, and a page without runs has nothing of any. Nobody else names one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ampbench
from ampbench.records import kinds
from ampbench.records.kinds import KINDS
from ampbench.studies.study import Study, study_of


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
