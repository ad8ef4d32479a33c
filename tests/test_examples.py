"""The notebooks and scripts of examples/ show what their texts promise."""

import ast
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted((EXAMPLES / "surprises").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "promised"),
    [
        ("first_answer", ("fp32 baseline", "bf16_pure refused", "speed against error")),
        ("keep_fp32", ("Keep 1 of 4 modules in fp32: angles", "with angles in fp32")),
        (
            "watch",
            (
                "Nothing is wrong in 5 looks at 200 steps",
                "updates that arrive",
                "watch-update",
                "watch-still",
                "Loss not finite from step 1 on",
                "torch.log(chances + 1e-8)",
            ),
        ),
        ("upgrade", ("torch 2.11.0+cu130 → 2.15.0+cu132", "output_rel_l2")),
    ],
)
def test_a_notebook_runs_and_shows_its_answer(name: str, promised: tuple[str, ...]) -> None:
    nbformat, nbclient = (
        pytest.importorskip(module, reason=f"{module} is not installed") for module in ("nbformat", "nbclient")
    )
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [one.text for one in outputs if one.get("name") == "stderr" and "ampbench" in one.text]
    shown = "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs)
    assert [text for text in promised if text not in " ".join(shown.split())] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_surprise_is_as_its_script_says(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = script.read_text()
    _, _, printed = (ast.get_docstring(ast.parse(text)) or "").partition("Prints:\n")
    runpy.run_path(str(script))
    assert capsys.readouterr().out == printed + "\n"
    assert len(text.splitlines()) <= 40
