"""Formats below 16 bits in `explain headroom`: float8 from histograms, and blocks of scaled formats as they run."""

from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from ampbench.core.precisions import FLOAT8
from ampbench.records.ranges import GRADIENT, INPUT, WEIGHT, Blocks, RangePass
from ampbench.show.studies import lines
from ampbench.studies.headroom import FLUSHES_IN_4_BITS, Headroom, RangesAsked, conclusions, fit
from ampbench.studies.headroom_measure import measure_ranges
from ampbench.trace.formats import count_blocks, quantise
from ampbench.trace.ranges import count_magnitudes, record_of
from ampbench.workload import Workload
from tests.studies.working import at_work

FORMATS = ["mxfp8", "nvfp4"]


@pytest.mark.parametrize("dtype", sorted(FLOAT8))
def test_float8_is_asked_about_at_scale_one_and_scaled_to_its_largest_number(dtype: str) -> None:
    form, info = FLOAT8[dtype], torch.finfo(getattr(torch, dtype.replace("e4m3", "e4m3fn")))
    assert (form.largest, form.normal, 2 * form.flush) == (info.max, info.tiny, info.tiny * info.eps)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(20_000, generator=generator) * form.largest * torch.rand(20_000, generator=generator) ** 40
    counted = record_of("", INPUT, "", "Linear", count_magnitudes(values))
    unscaled, scaled = fit(counted, dtype), fit(counted, dtype, form.largest / float(values.abs().max()))
    assert unscaled.overflow == pytest.approx(float((values.abs() >= form.overflow).double().mean()), rel=0.1)
    assert unscaled.overflow > 0
    assert (scaled.overflow, scaled.reach) == (0.0, pytest.approx(1.0))
    zero = (quantise(values, f"{dtype}:tensor") == 0) & (values != 0)
    assert scaled.flushed == pytest.approx(float(zero.double().mean()), abs=0.01)
    assert scaled.flushed > unscaled.flushed  # the largest values are beyond the format, and are scaled down


def measure(case: Any, phase: str, inputs: torch.Tensor, *layers: nn.Module) -> RangePass:
    workload = Workload(module=nn.Sequential(*layers), inputs=inputs, loss=lambda output: output.square().mean())
    formats = {INPUT: FORMATS, WEIGHT: FORMATS[:1], GRADIENT: FORMATS[:1]}
    record = measure_ranges(at_work(workload, case("fp32", phase)), RangesAsked(steps=2, formats=formats))
    assert msgspec.json.decode(msgspec.json.encode(record), type=RangePass) == record
    return record


def test_blocks_of_factors_are_counted_along_their_channels(case: Any) -> None:
    torch.manual_seed(0)
    images, linear = torch.randn(2, 40, 3, 3), nn.Linear(9, 4)
    images[0, 3, 0, 0] = 1e6
    record = measure(case, "training", images, nn.Conv2d(40, 5, 1, bias=False), nn.ReLU(), nn.Flatten(2), linear)
    rows = {(row.module, row.what, row.format): row for row in record.blocks}
    assert [*rows] == [
        *[("0", INPUT, fmt) for fmt in FORMATS], ("0", WEIGHT, "mxfp8"),
        *[("3", INPUT, fmt) for fmt in FORMATS], ("3", WEIGHT, "mxfp8"),
        ("3", GRADIENT, "mxfp8"), ("0", GRADIENT, "mxfp8"),
    ]  # fmt: skip
    for fmt in FORMATS:
        counts, row = count_blocks(images, fmt, 1), rows["0", INPUT, fmt]
        assert (row.blocks, row.flushed, row.zeroed) == (2 * counts.blocks, 2 * counts.flushed, 2 * counts.zeroed)
    assert rows["0", WEIGHT, "mxfp8"].blocks == 10
    assert rows["3", GRADIENT, "mxfp8"].blocks == 2 * 2 * 5
    mx, nv = (each for each in conclusions(case("fp32"), record) if each.code == Headroom.BLOCKS)
    outlier, worst = rows["0", INPUT, "mxfp8"], rows["3", INPUT, "mxfp8"]
    assert (outlier.flushed / outlier.blocks, outlier.zeroed) == (1 / 36, 2 * 31)
    assert (mx.subject, mx.facts["worst"], mx.facts["what"], "saturated" in mx.facts) == ("mxfp8", "3", INPUT, False)
    assert mx.facts["zeroed"] == worst.zeroed / worst.elements
    assert nv.subject == "nvfp4"
    assert nv.facts["zeroed"] > FLUSHES_IN_4_BITS  # its second scale is of the whole tensor


def test_ordinary_values_are_no_problem_in_any_format(case: Any) -> None:
    torch.manual_seed(0)
    record = measure(case, "inference", torch.randn(64, 64), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    assert {row.format for row in record.blocks} == {*FORMATS}
    assert not [each for each in conclusions(case("fp32"), record) if each.code == Headroom.BLOCKS]


def test_saturating_blocks_and_many_zeros_in_4_bits_are_named() -> None:
    def concluded(**fields: int) -> Any:
        row = Blocks(module="fc", kind="Linear", what=WEIGHT, format="nvfp4", blocks=10, elements=160, **fields)
        record = RangePass(case_id="case", steps=1, blocks=[row])
        return lines(each for each in conclusions(None, record) if each.code == Headroom.BLOCKS)  # type: ignore[arg-type]

    assert not concluded(flushed=10, zeroed=int(FLUSHES_IN_4_BITS * 160))
    (saturating,) = concluded(saturated=1)
    assert "1 of 1 factor" in saturating
    assert saturating.endswith("in 0% of blocks; 10.0% of blocks saturate)")
    assert len(concluded(flushed=10, zeroed=80)) == 1
