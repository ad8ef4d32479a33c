"""The ceilings of whatever accelerator there is; skipped where there is none."""

import pytest
import torch

from ampbench.cli.main import main
from ampbench.store import StoredRun, list_runs, read_run
from ampbench.studies.ceilings import Ceiling, bandwidth, best, datasheet_of, share

FOUND = torch.accelerator.current_accelerator(check_available=True)

pytestmark = [pytest.mark.device, pytest.mark.skipif(FOUND is None, reason="there is no accelerator here")]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """All ceilings of the accelerator, measured once."""
    results = tmp_path_factory.mktemp("results")
    assert main(["study", "ceilings", "--device", FOUND.type, "--seconds", "1", "--results", str(results)]) == 0
    (one,) = list_runs(results)
    return read_run(one)


def test_every_ceiling_is_attained(stored: StoredRun) -> None:
    assert {found.operation: found.error for found in stored.every(Ceiling)} == dict.fromkeys(
        ("matmul", "conv", "attention", "copy", "read"), ""
    )
    assert all(one.samples for found in stored.every(Ceiling) for one in found.attained)


def test_half_precision_attains_more_than_fp32_where_it_is_native(stored: StoredRun) -> None:
    device = stored.header.environment.device(FOUND.type)
    assert device is not None
    fp32 = best(stored.every(Ceiling), FOUND.type, "fp32")
    assert fp32 is not None
    for dtype in ("bf16", "fp16"):
        attained = best(stored.every(Ceiling), FOUND.type, dtype)
        assert attained is None or device.arithmetic[dtype] != "native" or attained > fp32


def test_no_ceiling_is_above_the_datasheet(stored: StoredRun) -> None:
    device = stored.header.environment.device(FOUND.type)
    promised = datasheet_of(device.name) if device is not None else None
    if promised is None:
        pytest.skip("this device has no datasheet in ampbench")
    moved = bandwidth(stored.every(Ceiling), FOUND.type)
    assert moved is not None
    assert 0.3 * 1e9 * promised.memory < moved <= 1.02e9 * promised.memory
    # convolutions by Winograd's algorithm do with fewer operations than are counted
    shares = [share(found, promised) for found in stored.every(Ceiling) if found.operation == "matmul"]
    assert all(0.1 < value <= 1.05 for value in shares if value is not None)
