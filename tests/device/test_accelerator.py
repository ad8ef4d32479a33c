"""What only an accelerator can show."""

from pathlib import Path

import pytest

import ampbench
from ampbench.cli.main import main


@pytest.fixture(scope="module")
def rows(device: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """Three networks of the tiny grid on the accelerator, measured once, in tenths of a second."""
    results = tmp_path_factory.mktemp("results")
    networks = ["mlp", "simple_conv", "transformer_encoder"]
    arguments = ["run", *networks, "--preset", "tiny", "--budget", "1", "--results", str(results)]
    assert main([*arguments, "--device", device]) in (0, 3)
    found: list[dict[str, object]] = ampbench.load(Path(results)).to_dict("records")
    return found


def test_every_case_is_measured_or_skipped_for_a_reason(rows: list[dict[str, object]]) -> None:
    failed = {row["case_id"]: row["reason"] for row in rows if row["outcome"] == "failed"}
    assert failed == {}
    assert all(row["reason"] for row in rows if row["outcome"] == "skipped")


def test_memory_is_the_allocators_and_never_nothing(rows: list[dict[str, object]]) -> None:
    measured = [row for row in rows if row["outcome"] == "ok"]
    assert {row["memory_source"] for row in measured} == {"allocator"}
    assert all(row["peak_memory_bytes"] > 0 for row in measured)


def test_tf32_diverges_more_than_fp32_where_the_device_has_it(rows: list[dict[str, object]]) -> None:
    errors = {
        row["precision"]: row["output_rel_l2"]
        for row in rows
        if row["workload"] == "mlp" and row["phase"] == "inference" and row["outcome"] == "ok"
    }
    if "tf32" not in errors:
        pytest.skip("the device has no tf32")
    assert errors["tf32"] > 10 * errors["fp32"]


GREEDY = """
import torch


class Greedy(torch.nn.Module):
    def forward(self, x):
        return torch.zeros(x.shape[0], 1 << 30, device=x.device).add(x[:, :1]).sum(1)


def make(batch_size=1):
    return Greedy(), torch.ones(batch_size, 4)
"""
"""8 GiB of temporaries for each example."""


def test_a_batch_that_does_not_fit_is_a_failed_row_and_the_sweep_goes_on(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(GREEDY)
    arguments = ["--precision", "fp32", "--phase", "inference", "--budget", "1", "--device", device]
    assert main(["run", "model.py:make", "--sweep", "batch_size=1,64,2", *arguments]) == 3
    outcomes = {row["batch_size"]: row for row in ampbench.load(tmp_path / "results").to_dict("records")}
    assert {size: row["outcome"] for size, row in outcomes.items()} == {1: "ok", 64: "failed", 2: "ok"}
    assert "out of memory" in outcomes[64]["reason"]
