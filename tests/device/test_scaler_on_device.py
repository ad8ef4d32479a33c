"""The study of loss scaling on an accelerator; skipped where there is none."""

from pathlib import Path

import pytest
import torch

from ampbench.cli.main import main
from ampbench.store import list_runs, read_run
from ampbench.studies.scaler import ScalerRun

FOUND = torch.accelerator.current_accelerator(check_available=True)

pytestmark = [pytest.mark.device, pytest.mark.skipif(FOUND is None, reason="there is no accelerator here")]


def test_every_setting_trains_on_the_device(tmp_path: Path) -> None:
    arguments = ["study", "scaler", "mlp", "--preset", "tiny", "--steps", "30", "--results", str(tmp_path)]
    arguments += ["--device", FOUND.type]
    if main(arguments) == 5:  # a device without fp64, which GradScaler needs
        assert main([*arguments, "--no-scaler"]) == 0
    (file,) = list_runs(tmp_path)
    (runs,) = read_run(file).several_of(ScalerRun).values()
    assert [run.error for run in runs] == [""] * len(runs)
    low = [run for run in runs if run.precision != "fp32"]
    assert all(run.looks and run.gradients for run in low)
    scaled = [run for run in low if run.setting.name == "default"]
    assert all(None not in run.losses and run.looks[-1].rel_l2 for run in scaled)
