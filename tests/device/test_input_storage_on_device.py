"""Input storage and compiled training on the accelerator."""

from pathlib import Path

import ampbench
from ampbench.cli.main import main
from ampbench.store import list_runs, read_run
from ampbench.studies.input_storage import StoragePass


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
