"""The ceilings of whatever accelerator there is."""

import pytest

from ampbench.cli.main import main
from ampbench.store import StoredRun, list_runs, read_run
from ampbench.studies.ceilings import COPY, Ceiling, best, datasheet_of, share


@pytest.fixture(scope="module")
def stored(device: str, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """All ceilings of the accelerator, measured once."""
    results = tmp_path_factory.mktemp("results")
    assert main(["study", "ceilings", "--device", device, "--seconds", "1", "--results", str(results)]) == 0
    (one,) = list_runs(results)
    return read_run(one)


def test_every_ceiling_is_attained(stored: StoredRun) -> None:
    assert {found.operation: found.error for found in stored.every(Ceiling)} == dict.fromkeys(
        ("matmul", "conv", "attention", "copy", "read"), ""
    )
    assert all(one.samples for found in stored.every(Ceiling) for one in found.attained)


def test_half_precision_attains_more_than_fp32_where_it_is_native(device: str, stored: StoredRun) -> None:
    described = stored.header.environment.device(device)
    assert described is not None
    fp32 = best(stored.every(Ceiling), device, "fp32")
    assert fp32 is not None
    for dtype in ("bf16", "fp16"):
        attained = best(stored.every(Ceiling), device, dtype)
        assert attained is None or described.arithmetic[dtype] != "native" or attained > fp32


def test_no_ceiling_is_above_the_datasheet(device: str, stored: StoredRun) -> None:
    described = stored.header.environment.device(device)
    promised = datasheet_of(described.name) if described is not None else None
    if promised is None:
        pytest.skip("this device has no datasheet in ampbench")
    moved = best(stored.every(Ceiling), device, "fp32", COPY)
    assert moved is not None
    assert 0.3 * 1e9 * promised.memory < moved <= 1.02e9 * promised.memory
    # convolutions by Winograd's algorithm do with fewer operations than are counted
    shares = [share(found, promised) for found in stored.every(Ceiling) if found.operation == "matmul"]
    assert all(0.1 < value <= 1.05 for value in shares if value is not None)
