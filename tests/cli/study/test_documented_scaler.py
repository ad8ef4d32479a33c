"""The example of docs/loss-scaling.md: gradients underflow, training fails of it, and scaling repairs it."""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ampbench.records.case import Case
from ampbench.records.run import ScalerSetting
from ampbench.studies.scaler import State, outcomes
from ampbench.studies.scaler_measure import run_scaler
from ampbench.worker.machine import Cpu

PAGE = (Path(__file__).parents[3] / "docs" / "loss-scaling.md").read_text(encoding="utf-8")
(MODEL,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
CASE = Case(
    workload="distil.py:make", family="user", precision="fp16_autocast", device="cpu", phase="training", path="eager",
    batch_size=256, input_dtype="fp32", memory_format="contiguous",
)  # fmt: skip


def test_a_smaller_example_lags_without_scaling_and_follows_with_it() -> None:
    pytest.importorskip("pydoc_data.topics")
    names: dict[str, Any] = {}
    exec(MODEL, names)
    names |= {"WIDTH": 16, "BATCHES": 2, "BATCH": 256}
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        workload = names["make"]()
        settings = (None, ScalerSetting(name="no scaling", enabled=False), ScalerSetting(name="default"))
        found = outcomes([run_scaler(workload, CASE, Cpu(), setting, 32) for setting in settings])
    assert [one.state for one in found] == [State.FOLLOWS, State.BEHIND, State.FOLLOWS]
    _, unscaled, scaled = found
    assert unscaled.flushed is not None
    assert unscaled.flushed > 0.3
    assert scaled.flushed is not None
    assert scaled.flushed < 0.001
    assert unscaled.lag is not None
    assert unscaled.lag > 0.2
    assert scaled.lag == pytest.approx(0, abs=0.01)


@pytest.mark.slow
def test_the_example_rises_without_scaling_and_is_repaired_by_it(tmp_path: Path, ampbench: Callable[..., Any]) -> None:
    pytest.importorskip("pydoc_data.topics")
    (tmp_path / "distil.py").write_text(MODEL, encoding="utf-8")
    arguments = ["--setting", "no scaling", "--setting", "default", "--threads", "1", "--json"]
    said = ampbench("study", "scaler", "distil.py:make", *arguments)
    assert said.code == 0
    assert "Warning" not in said.err
    (case,) = json.loads(said.out)["cases"]
    rows = {row["setting"]: row for row in case["tables"]["settings"]}
    assert [row["state"] for row in rows.values()] == ["as fp32", "behind", "as fp32"]
    assert rows["no scaling"]["flushed_share"] > 0.3
    assert rows["default"]["flushed_share"] < 0.001
    assert rows["no scaling"]["grad_rel_l2"] > 10 * rows["default"]["grad_rel_l2"]
    assert rows["no scaling"]["loss"] > 10 * rows["fp32"]["loss"]
    assert {"scaling-needed", "scaling-rises"} <= {each["code"] for each in case["statements"]}
