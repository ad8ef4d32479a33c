"""Each script in examples/surprises prints what its first lines say."""

import ast
import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "examples" / "surprises").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_surprise_is_as_its_script_says(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = script.read_text()
    _, _, printed = (ast.get_docstring(ast.parse(text)) or "").partition("Prints:\n")
    runpy.run_path(str(script))
    assert capsys.readouterr().out == printed + "\n"
    assert len(text.splitlines()) <= 40
