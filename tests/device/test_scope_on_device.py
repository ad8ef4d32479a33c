"""The scopes of autocast on whatever accelerator there is."""

from pathlib import Path

from ampbench.cli.main import main
from ampbench.store import list_runs, read_run
from ampbench.studies.scope import FORWARD, FORWARD_AND_LOSS, SCOPES, WHOLE_LOOP, ScopePass


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
