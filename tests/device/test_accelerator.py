"""What only an accelerator can show; skipped where there is none."""

from pathlib import Path

import pytest
import torch

import ampbench
from ampbench.cli.main import main

FOUND = torch.accelerator.current_accelerator(check_available=True)

pytestmark = [pytest.mark.device, pytest.mark.skipif(FOUND is None, reason="there is no accelerator here")]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """Three networks of the tiny grid on the accelerator, measured once, in tenths of a second."""
    results = tmp_path_factory.mktemp("results")
    networks = ["linear_stack", "conv_stack", "transformer_encoder"]
    arguments = ["run", *networks, "--preset", "tiny", "--rounds", "1", "--burst", "--results", str(results)]
    assert main([*arguments, "--device", FOUND.type]) in (0, 3)
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
        if row["workload"] == "linear_stack" and row["phase"] == "inference" and row["outcome"] == "ok"
    }
    if "tf32" not in errors:
        pytest.skip("the device has no tf32")
    assert errors["tf32"] > 10 * errors["fp32"]
