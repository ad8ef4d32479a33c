"""The example of docs/loss-scaling.md: gradients underflow, training fails of it, and scaling repairs it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "loss-scaling.md").read_text()
(MODEL,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_example_fails_without_scaling_and_is_repaired_by_it(tmp_path: Path, ampbench: Callable[..., Any]) -> None:
    pytest.importorskip("sklearn")
    (tmp_path / "autoencoder.py").write_text(MODEL)
    arguments = ["--steps", "300", "--setting", "no scaling", "--setting", "default", "--threads", "1", "--json"]
    said = ampbench("study", "scaler", "autoencoder.py:make", *arguments)
    assert said.code == 0
    (case,) = json.loads(said.out)["cases"]
    rows = {row["setting"]: row for row in case["tables"]["settings"]}
    assert [row["state"] for row in rows.values()] == ["as fp32", "behind", "as fp32"]
    assert rows["no scaling"]["flushed_share"] > 0.3
    assert rows["default"]["flushed_share"] < 0.01
    assert rows["no scaling"]["grad_rel_l2"] > 10 * rows["default"]["grad_rel_l2"]
    assert case["sentences"][0].startswith("fp16 needs loss scaling here: without it the loss ends ")
