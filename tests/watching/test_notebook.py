"""The notebook on a watched training says what its text promises."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "watch.ipynb"


@pytest.mark.slow
def test_the_notebook_shows_a_healthy_a_stalled_and_a_broken_training(tmp_path: Path) -> None:
    nbformat, nbclient = (
        pytest.importorskip(name, reason=f"{name} is not installed") for name in ("nbformat", "nbclient")
    )
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert len(notebook.cells) == 10
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    healthy, chart, stalled, broken = shown[2:]
    assert "Nothing is wrong in 5 looks at 200 steps" in healthy
    assert "updates that arrive" in chart
    assert "watch-update" in stalled
    assert "watch-still" in stalled
    assert "Loss not finite from step 1 on" in broken
    assert "torch.log(chances + 1e-8)" in broken
