"""The scopes of autocast on whatever accelerator there is."""

import json
from pathlib import Path

import pytest

import ampbench
from ampbench.cli.main import main
from ampbench.store import list_runs, read_run
from ampbench.studies.input_storage import StoragePass
from ampbench.studies.scope import FORWARD, FORWARD_AND_LOSS, SCOPES, WHOLE_LOOP, ScopePass
from ampbench.studies.training import SETTINGS, Training


def test_the_whole_loop_shows_its_costs_and_the_recommended_scope_none(device: str, tmp_path: Path) -> None:
    arguments = ["study", "scope", "mlp", "transformer_encoder", "--preset", "tiny", "--device", device]
    precisions = ["--precision", "fp16_autocast", "--precision", "bf16_autocast"]
    assert main([*arguments, *precisions, "--steps", "4", "--results", str(tmp_path)]) == 0
    (file,) = list_runs(tmp_path)
    stored = read_run(file)
    assert len(stored.of(ScopePass)) == 4
    for found in stored.of(ScopePass).values():
        runs = {run.scope: run for run in found.scopes}
        assert list(runs) == list(SCOPES)
        best, whole = runs[FORWARD_AND_LOSS], runs[WHOLE_LOOP]
        assert all(run.samples and run.casts and min(run.peak_bytes) > 0 for run in runs.values())
        assert best.stale_weights == [0] * 4
        assert best.alive_bytes[-1] <= best.alive_bytes[0]
        assert whole.stale_weights[-1] > 0
        assert whole.alive_bytes[-1] > best.alive_bytes[-1]
        assert whole.update_rel_l2 > 2 * best.update_rel_l2
        assert (best.dtypes["loss"], runs[FORWARD].dtypes["loss"] != "fp32") == ("fp32", True)


def test_inputs_in_half_are_copied_in_half_the_bytes_and_a_linear_takes_them_as_they_are(
    device: str, tmp_path: Path
) -> None:
    arguments = ["--preset", "tiny", "--seconds", "1", "--device", device, "--results", str(tmp_path)]
    precisions = ["--precision", "bf16_autocast", "--precision", "fp16_autocast"]
    assert main(["study", "input-storage", "mlp", "transformer_encoder", *precisions, *arguments]) == 0
    (path,) = list_runs(tmp_path)
    run = read_run(path)
    assert len(run.of(StoragePass)) == 8
    for case_id, found in run.of(StoragePass).items():
        assert 2 * found.low.stored_bytes == found.full.stored_bytes
        assert min(found.full.copy_samples) > 0
        if run.cases[case_id].workload == "mlp":
            assert (found.identical, found.uses[0].read_in_fp32) == (True, "")
            assert found.full.casts - found.low.casts == 1
        else:
            assert found.identical is False
            assert found.uses[0].use == "cast to fp32"


def test_compiled_training_diverges_no_more_than_eager_training(device: str, tmp_path: Path) -> None:
    arguments = ["--preset", "tiny", "--rounds", "1", "--device", device, "--results", str(tmp_path)]
    paths = ["--path", "eager", "--path", "compiled", "--phase", "training"]
    assert main(["run", "mlp", "--precision", "fp32", "--precision", "fp16_autocast", *paths, *arguments]) == 0
    rows = {(row["precision"], row["path"]): row for row in ampbench.load(tmp_path).to_dict("records")}
    for precision in ("fp32", "fp16_autocast"):
        eager, compiled = (rows[precision, path] for path in ("eager", "compiled"))
        assert compiled["outcome"] == "ok"
        assert compiled["grad_rel_l2"] < 4 * eager["grad_rel_l2"]


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
