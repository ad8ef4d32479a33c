"""How busy the device is in a step, and steps whose launches are recorded; skipped where there is no accelerator."""

from collections.abc import Mapping
from pathlib import Path

import pytest

import ampbench
from ampbench.cli.main import main

PLAIN = ["--precision", "fp32", "--precision", "bf16_autocast", "--rounds", "1", "--min-run-time", "0.06"]


def measured(device: str, results: Path, *arguments: str) -> dict[tuple[str, ...], Mapping[str, object]]:
    """Return the rows of a run on the device by workload, precision, phase and path."""
    assert main(["run", *arguments, *PLAIN, "--device", device, "--results", str(results)]) == 0
    rows = ampbench.load(results).to_dict("records")
    return {tuple(row[name] for name in ("workload", "precision", "phase", "path")): row for row in rows}


def test_large_products_keep_the_device_busier_than_small_ones(device: str, tmp_path: Path) -> None:
    small = measured(device, tmp_path / "small", "mlp", "--preset", "tiny", "--phase", "inference")
    large = measured(device, tmp_path / "large", "mlp", "--preset", "large", "--phase", "inference")
    for case, row in small.items():
        assert 0 < row["busy_share"] < large[case]["busy_share"] <= 1


@pytest.mark.parametrize(
    "options",
    [
        ["--path", "eager,compiled,compiled-reduce-overhead", "--phase", "training"],
        ["--path", "eager,compiled-reduce-overhead", "--phase", "inference"],
    ],
    ids=["training", "inference"],
)
def test_what_is_recorded_computes_what_the_eager_step_does_and_has_its_memory(
    device: str, options: list[str], tmp_path: Path
) -> None:
    rows = measured(device, tmp_path, "mlp", "--preset", "tiny", *options)
    others = [case for case in rows if case[3] != "eager"]
    assert others
    for case in others:
        row, eager = rows[case], rows[(*case[:3], "eager")]
        assert row["outcome"] == "ok", row["reason"]
        assert row["output_rel_l2"] < 3 * eager["output_rel_l2"] + 1e-6
        assert row["peak_memory_bytes"] > eager["peak_memory_bytes"] / 2
        if case[2] == "training":
            assert row["grad_rel_l2"] < 3 * eager["grad_rel_l2"] + 1e-6
            assert row["param_rel_l2"] < 3 * eager["param_rel_l2"] + 1e-6


IN_PLACE = """
import torch
from ampbench import Workload


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, given, total):
        total.add_(1)
        return self.layer(given + total)


def counting():
    return Workload(module=Counting(), inputs=(torch.randn(8, 64), torch.zeros(64)))
"""


def test_graphs_that_torch_leaves_aside_are_told_with_its_reason(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inputs that change in place are not recorded: docs of torch.compiler_cudagraph_trees, "Input Mutation"."""
    made = tmp_path / "net.py"
    made.write_text(IN_PLACE)
    options = ["--path", "compiled-reduce-overhead", "--phase", "inference"]
    rows = measured(device, tmp_path / "results", f"{made}:counting", *options)
    assert rows
    assert all(row["outcome"] == "ok" for row in rows.values())
    assert "torch.compile recorded no graphs" in capsys.readouterr().out
