"""What a verb prints of a study unasked fits on a screen of 40 lines and 80 columns; -v has the rest."""

from pathlib import Path

import pytest

from ampbench import store
from ampbench.show import studies
from ampbench.show.terminal import document_lines
from ampbench.studies.study import study_of

FOLDER = Path(__file__).parents[1] / "net" / "runs"
RUNS = [path for path in sorted(FOLDER.glob("*.jsonl")) if store.read_header(path).explains]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_study_fits_on_a_screen(path: Path) -> None:
    stored = store.read_run(path)
    shown = studies.document(study_of(stored.header.explains), stored, list(stored.cases))
    lines = [str(line) for line in document_lines(shown, 80)]
    lines += [line for code in shown.code for line in ["", code.title, *code.text.splitlines()]]
    assert len(lines) <= 38  # and two that name the run
    assert max(map(len, lines)) <= 80
    if "-v has the rest" in "".join(lines):
        whole = studies.document(study_of(stored.header.explains), stored, list(stored.cases), everything=True)
        assert len(list(document_lines(whole, 80))) > len(lines)
