"""What a device attains at best, what that says of half precision, and the datasheet of a name that drivers give."""

from collections.abc import Sequence

import pytest

from ampbench.core.statement import Statement
from ampbench.records.case import DeviceDescription
from ampbench.records.measured import CONV, MATMUL
from ampbench.studies.ceilings import (
    COPY,
    READ,
    Attained,
    Attains,
    Ceiling,
    Ceilings,
    bandwidth_of,
    best,
    conclusions,
    datasheet_of,
    share,
    sizes,
)
from tests.studies.ceiling_records import A100, CEILINGS, CPU, ceiling


def test_the_ceiling_is_that_of_the_best_size_of_matrix_products_and_convolutions() -> None:
    assert best(CEILINGS, "cpu", "fp32") == pytest.approx(4e11)
    assert best(CEILINGS, "cpu", "fp32", MATMUL) == pytest.approx(2e11)
    assert best(CEILINGS, "cpu", "bf16") == pytest.approx(8e11)
    assert best(CEILINGS, "cpu", "fp16") == pytest.approx(4e9)
    assert best(CEILINGS, "cpu", "fp16", CONV) is None
    assert best(CEILINGS, "cuda", "fp32") is best(CEILINGS, "cpu", "tf32") is None


def test_the_bandwidth_is_that_of_the_largest_copy_which_no_cache_holds() -> None:
    assert best(CEILINGS, "cpu", "fp32", "copy") == pytest.approx(5e10)
    assert best(CEILINGS, "cpu", "fp16", "copy") == pytest.approx(2.5e10)
    assert best(CEILINGS, "cuda", "fp32", "copy") is None
    copied = CEILINGS[2].top
    assert copied is not None
    assert copied.size == "size 1"
    assert ceiling(COPY, "fp32").top is None


def told(device: DeviceDescription, ceilings: Sequence[Ceiling]) -> dict[tuple[str, str], Statement]:
    """The conclusions by code and subject."""
    found = Ceilings(name=device.type, device=device, ceilings=ceilings)
    return {(each.code, each.subject): each for each in conclusions(None, found)}


def test_half_precision_has_its_rate_and_the_time_of_copies_against_fp32() -> None:
    assert {key: statement.facts for key, statement in told(CPU, CEILINGS).items()} == {
        (Attains.RATIO, "bf16"): {"ratio": pytest.approx(2)},
        (Attains.TRAFFIC, "bf16"): {"ratio": pytest.approx(0.5)},
        (Attains.RATIO, "fp16"): {"ratio": pytest.approx(0.01), "emulated": 1},
        (Attains.TRAFFIC, "fp16"): {"ratio": pytest.approx(1)},
    }


def test_what_fits_a_cache_moves_at_that_cache_s_speed() -> None:
    def moved(operation: str, *points: tuple[int, float]) -> object:
        sizes = [Attained(size=str(work), work=work, samples=[work / reached]) for work, reached in points]
        return ceiling(operation, "fp32", attained=sizes)

    copies, reads = moved(COPY, (100, 50.0), (1000, 20.0)), moved(READ, (50, 90.0), (400, 40.0), (800, 25.0))
    found = [copies, reads]
    for size, reached in ((40, None), (50, 90.0), (99, 90.0), (100, 50.0), (399, 50.0), (400, 40.0), (1000, 20.0)):
        assert bandwidth_of(found, "cpu", size) == (None if reached is None else pytest.approx(reached)), size  # type: ignore[arg-type]
    assert bandwidth_of([copies], "cpu", 1000) is None  # type: ignore[list-item]
    assert bandwidth_of(found, "cuda", 1000) is None  # type: ignore[arg-type]


def test_a_known_device_is_held_against_its_datasheet() -> None:
    found = [
        ceiling(MATMUL, "fp32", 1.95e13, device="cuda"),
        ceiling(MATMUL, "tf32", 7.8e13, device="cuda"),
        ceiling(MATMUL, "bf16", 2.34e14, device="cuda"),
        ceiling(COPY, "fp32", 1.244e12, device="cuda"),
    ]
    rows = sizes(Ceilings(name="cuda", device=A100, ceilings=found))
    assert [row.share for row in rows] == pytest.approx([1.0, 0.5, 0.75, 0.8])
    promised = datasheet_of(A100.name)
    assert share(found[1], promised) == pytest.approx(0.5)
    assert share(found[3], promised) == pytest.approx(0.8)
    assert share(ceiling(MATMUL, "fp64", 1e13), promised) is share(found[1], None) is None
