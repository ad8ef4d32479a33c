"""The example of docs/training.md: gradients underflow, training fails of it, and scaling repairs it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
(MODEL,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_example_fails_without_scaling_and_is_repaired_by_it(tmp_path: Path, ampbench: Callable[..., Any]) -> None:
    pytest.importorskip("pydoc_data.topics")
    (tmp_path / "distil.py").write_text(MODEL, encoding="utf-8")
    arguments = ["--setting", "no scaling", "--setting", "default", "--steps", "40", "--seeds", "2", "--threads", "1"]
    said = ampbench("study", "training", "distil.py:make", *arguments, "--json")
    assert said.code == 0
    assert "Warning" not in said.err
    document = json.loads(said.out)
    ends, rows = ({row["precision"]: row for row in document["tables"][key]} for key in ("endings", "gradients"))
    assert rows["no scaling"]["flushed_share"] > 0.3
    assert rows["default"]["flushed_share"] < 0.001
    assert rows["no scaling"]["grad_rel_l2"] > 10 * rows["default"]["grad_rel_l2"]
    assert (ends["no scaling"]["trains_as_fp32"], ends["default"]["trains_as_fp32"]) == (False, True)
    (statements,) = document["statements"].values()
    assert "training-scale-needed" in {each["code"] for each in statements}
