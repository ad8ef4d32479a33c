"""What the charts of ceilings draw: rates over sizes, and peaks of datasheets."""

import math

import pytest
from msgspec.structs import replace

from ampbench.instruments.ceilings.records import Attained
from ampbench.records.measured import MATMUL
from ampbench.report.material import material_of
from ampbench.show.charts import Chart
from ampbench.show.page import Part
from ampbench.store import StoredRun
from tests.report.materials import part_of
from tests.report.studied_runs import (
    CEILING_RUN,
    ceiling,
    ceilings_run,
)


def drawn(*runs: StoredRun) -> Part:
    """Return the part of the page that tells of `runs`."""
    part = part_of("ceilings", material_of([], explanations=list(runs)))
    assert part is not None
    return part


def chart_of(part: Part, id: str) -> Chart:
    return next(chart for chart in part.charts if chart.id == id)


def test_ceilings_are_drawn_over_sizes_by_operation():
    part = drawn(ceilings_run(*CEILING_RUN))
    flops, copies = (chart_of(part, name) for name in ("studies-flops", "studies-copies"))
    assert [one.label for one in flops.choices] == ["cpu: matrix products", "cpu: convolutions"]
    assert flops.choices[0].marks == ["fp32", "bf16", "fp16"]
    assert [one.label for one in copies.choices] == ["cpu: copies"]
    rows = [row for row in part.datasets["studies-flops"] if row["series"] == "bf16" and row["case"] == "0-0"]
    assert [row["rate"] for row in rows] == pytest.approx([1e11, 4e11, 8e11])
    assert all(row["limit"] is None for row in part.datasets["studies-flops"])


def test_every_size_is_folded_away_and_convolutions_are_not_joined():
    found = ceiling(MATMUL, "fp32", 1e9, 2e9, notes=["4096 and larger left out"])
    part = drawn(ceilings_run(found, *CEILING_RUN[4:6]))
    (detail,) = part.details
    assert list(detail.folded) == ["Every size"]
    assert any("left out" in block.title for block in detail.blocks)
    joined = {row["case"]: row["joined"] for row in part.datasets["studies-flops"]}
    assert joined == {"0-0": True, "0-1": False}


def test_the_datasheets_peaks_are_lines_where_they_are_known():
    found = [ceiling(MATMUL, dtype, 1e14, device="cuda") for dtype in ("fp32", "bf16", "fp16")]
    part = drawn(ceilings_run(*found, device="NVIDIA H200"))
    lines = {row["text"]: row["limit"] for row in part.datasets["studies-flops"] if row["text"]}
    assert any(text.startswith("datasheet, bf16, fp16: ") for text in lines)
    assert all(math.isfinite(limit) and limit > 1e13 for limit in lines.values())


@pytest.mark.parametrize(("older", "newer"), [(1e9, 2e9), (2e9, 1e9)])
def test_of_two_runs_of_one_machine_the_higher_ceiling_counts_whichever_is_newer(older: float, newer: float):
    first = ceilings_run(ceiling(MATMUL, "fp32", older), run="older", started_at="2026-01-01T00:00:00Z")
    part = drawn(first, ceilings_run(ceiling(MATMUL, "fp32", newer)))
    assert [row["rate"] for row in part.datasets["studies-flops"]] == [2e9]


def test_ceilings_of_other_numbers_of_threads_stand_apart():
    found = [replace(ceiling(MATMUL, "fp32", 1e9 * threads), threads=threads) for threads in (1, 2)]
    runs = [ceilings_run(one, run=f"{one.threads}") for one in found]
    part = drawn(*runs)
    assert [one.name for one in part.details] == ["cpu, 1 thread", "cpu, 2 threads"]


def test_linear_layers_are_dashed_beside_products_of_square_matrices():
    sizes = [Attained(size=size, work=2 << 30, samples=[1e-3]) for size in ("1024x1024x1024", "linear 1024x1024x1024")]
    part = drawn(ceilings_run(replace(ceiling(MATMUL, "fp32", 1e9), attained=sizes)))
    assert [row["kind"] for row in part.datasets["studies-flops"]] == ["", "linear"]
    chart = chart_of(part, "studies-flops")
    assert "Dashed lines are linear layers" in chart.alt
    assert "'linear'" in chart.spec["layer"][1]["encoding"]["strokeDash"]["condition"]["test"]


def test_an_operation_that_could_not_be_measured_is_told_with_its_reason():
    part = drawn(ceilings_run(ceiling(MATMUL, "fp16", error="not implemented for 'Half'")))
    assert part.charts == []
    (detail,) = part.details
    assert any("not implemented for 'Half'" in block.title for block in detail.blocks)
