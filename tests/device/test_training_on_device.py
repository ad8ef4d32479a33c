"""Trainings on an accelerator: every precision it has converges like fp32."""

import json
from pathlib import Path

import pytest

from ampbench.cli.main import main
from ampbench.store import list_runs, read_run
from ampbench.studies.training import SETTINGS, Training

MODEL = """
import torch
import ampbench


def make(width=32):
    rows = torch.randn(320, 16)
    classes = rows[:, :4].argmax(1)
    return ampbench.Workload(
        module=torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 4)),
        inputs=list(rows[:256].split(32)),
        targets=list(classes[:256].split(32)),
        held_out=(rows[256:], classes[256:]),
        loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    )
"""


def test_every_precision_trains_and_learns(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    arguments = ["model.py:make", "--steps", "60", "--seeds", "2", "--device", device, "--json"]
    assert main(["study", "training", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["ended"] == "complete"
    (path,) = list_runs(tmp_path / "results")
    run = read_run(path)
    assert not run.failures
    for case_id, trainings in run.several_of(Training).items():
        for training in trainings:
            assert (training.error, training.ended_at) == ("", None), case_id
            last = training.scores[-1]
            assert last.correct is not None
            assert last.decisions == 64
            assert last.correct > 40, case_id
    fp32 = next(found for case_id, found in run.several_of(Training).items() if "/fp32/" in case_id)
    assert sorted(training.arm for training in fp32) == ["", "", "control", "control", "reference", "reference"]


def test_every_setting_of_gradscaler_trains_on_the_device(device: str, tmp_path: Path) -> None:
    arguments = ["study", "training", "mlp", "--preset", "tiny", "--steps", "30", "--seeds", "1"]
    assert main([*arguments, "--setting", "all", "--device", device, "--results", str(tmp_path)]) == 0
    (file,) = list_runs(tmp_path)
    settings = [training for training in read_run(file).every(Training) if training.arm in SETTINGS]
    assert [training.error for training in settings] == [""] * 5
    assert all(training.looks for training in settings)
    (default,) = [training for training in settings if training.arm == "default"]
    assert None not in default.losses
    assert default.looks[-1].rel_l2
