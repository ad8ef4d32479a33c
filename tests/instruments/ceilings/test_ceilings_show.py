"""Ceilings as blocks and as rows."""

import math

from ampbench.instruments.ceilings.findings import ordered
from ampbench.instruments.ceilings.show import COLUMNS, ceilings_section, ceilings_sections, sizes
from ampbench.records.measured import MATMUL
from ampbench.show.document import records
from tests.instruments.ceilings.ceiling_records import A100, CEILINGS, CPU, ceiling
from tests.scripted_channel import machine


def test_a_section_has_a_row_for_each_dtype_with_its_ratio_to_fp32() -> None:
    section = ceilings_section(CPU, CEILINGS)
    assert section.title == "cpu · AMD EPYC · 2 threads"
    (table,) = [block for block in section.blocks if block.rows]
    assert list(table.headers) == ["dtype", "arithmetic", "matrix products", "convolutions", "to fp32", "copies"]
    assert table.rows == [
        ["fp32", "native", "200 GFLOP/s", "400 GFLOP/s", "1.00x", "50.0 GB/s"],
        ["bf16", "native", "800 GFLOP/s", "700 GFLOP/s", "2.00x", "50.0 GB/s"],
        ["fp16", "emulated", "4.00 GFLOP/s", "–", "0.0100x", "25.0 GB/s"],
    ]
    assert section.blocks[-1].title == "fp16 conv: no kernel for Half."


def test_everything_is_every_size_and_what_was_left_out() -> None:
    section = ceilings_section(CPU, CEILINGS, everything=True)
    sizes = next(block for block in section.blocks if block.title == "Every size")
    assert len(sizes.rows) == sum(len(found.attained) for found in CEILINGS)
    assert sizes.rows[0] == ["matmul", "fp32", "size 0", "", "150 GFLOP/s", "1.00 ms", "3"]
    lines = [block.title for block in section.blocks]
    assert "fp16 matmul: size 2 and larger left out: one run would take about 7.00 s." in lines


def test_shares_of_the_datasheet_are_columns_where_it_is_known() -> None:
    found = [ceiling(MATMUL, "bf16", 1.56e14, device="cuda")]
    sections = ceilings_sections(machine(CPU, A100), [*CEILINGS, *found])
    assert [section.title for section in sections] == ["cpu · AMD EPYC · 2 threads", "cuda · NVIDIA A100-SXM4-40GB"]
    (table,) = [block for block in sections[1].blocks if block.rows]
    assert table.headers[-2:] == ["of peak", "of bandwidth"]
    assert table.rows == [["bf16", "", "156 TFLOP/s", "–", "50.0%", "–"]]


def test_a_device_that_the_environment_does_not_know_is_told_by_its_type() -> None:
    (section,) = ceilings_sections(machine(), CEILINGS)
    assert section.title == "cpu · 2 threads"


def test_ceilings_are_in_the_order_of_operations_and_dtypes() -> None:
    named = [(found.operation, found.dtype) for found in ordered(CEILINGS[::-1])]
    assert named[:4] == [("matmul", "fp32"), ("matmul", "bf16"), ("matmul", "fp16"), ("conv", "fp32")]


def test_machines_have_a_row_for_each_size_and_for_what_could_not_be_measured() -> None:
    rows = records(COLUMNS, sizes(machine(CPU), CEILINGS))
    assert len(rows) == sum(max(1, len(found.attained)) for found in CEILINGS)
    (counted,) = [row for row in rows if (row["operation"], row["dtype"], row["ceiling"]) == ("matmul", "fp32", True)]
    assert (counted["size"], counted["unit"], counted["samples"]) == ("size 1", "FLOP", 3)
    assert math.isclose(counted["per_second"], 2e11)
    assert math.isclose(counted["per_second"], counted["work"] / counted["seconds"])
    (failed,) = [row for row in rows if row["reason"] is not None]
    assert (failed["operation"], failed["dtype"], failed["reason"]) == ("conv", "fp16", "no kernel for Half")
    assert failed["per_second"] is None
