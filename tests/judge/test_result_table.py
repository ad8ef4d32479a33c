"""The result table's layout, from rows that no CPU gives."""

from typing import Any

import pytest
from rich.cells import cell_len

from ampbench.core.budget import Budget
from ampbench.core.metrics import COLUMNS
from ampbench.core.precisions import PRECISIONS
from ampbench.core.statement import Answer, Hint, Note, state
from ampbench.judge import notes, table
from ampbench.judge.verdict import choose
from ampbench.records.case import DeviceDescription
from ampbench.records.labels import device_statement
from ampbench.show.rows import Take, described, grouped
from ampbench.show.wording import answer
from tests.stored_runs import make_header


def gpu_row(precision: str, speed: float, phase: str = "training") -> dict[str, Any]:
    return dict.fromkeys(COLUMNS) | {
        "case_id": f"resnet50/{precision}/{phase}",
        "workload": "resnet50",
        "parameters": "classes=1000,image=224",
        "precision": precision,
        "device": "cuda",
        "phase": phase,
        "path": "eager",
        "batch_size": 256,
        "memory_format": "channels_last",
        "outcome": "ok",
        "seconds_median": 0.234 / speed,
        "seconds_low": 0.233 / speed,
        "seconds_high": 0.235 / speed,
        "items_per_second": 256 * speed / 0.234,
        "speedup_vs_fp32": speed,
        "speedup_vs_tf32": speed / 2.2,
        "peak_memory_bytes": 22_548_578_304,
        "memory_ratio_vs_fp32": 1.0,
        "output_nonfinite": 0,
        "output_not_finite": None,
        "grad_not_finite": None,
        "reference_dtype": "fp64",
        "output_rel_l2": 1.2e-3,
        "output_floor_ratio": 12_345.0 if precision == "fp32" else 3.3,
        "argmax_agreement": 0.9961,
        "grad_rel_l2": 1.2e-2,
        "grad_flushed_share": 0.0012,
    }


SPEEDS = {
    "fp32": 1, "tf32": 2.2, "fp16_autocast": 5.12, "bf16_autocast": 5.31, "fp16_pure": 11.2, "bf16_pure": 10.9
}  # fmt: skip
ROWS = [gpu_row(row.name, SPEEDS.get(row.name, 8.3)) for row in PRECISIONS.values() if "cuda" in row.default_on]


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ((None, "SGD lr=0.1"), "optimizer: SGD lr=0.1"),
        (("none", "none"), "optimizer: none named; steps timed with plain SGD"),
        ((None, None), ""),
    ],
)
def test_the_optimizer_stands_above_the_table_in_place_of_the_recipe(names: tuple[str | None, ...], line: str) -> None:
    rows = [
        gpu_row(precision, 1.0) | {"optimizer": name, "recipe": "lr=0.1"}
        for precision, name in zip(("fp32", "bf16_pure"), names, strict=True)
    ]
    lines = [
        one.plain for one in table.table_lines(grouped(rows), {}, {"training": table.lay_out(rows, "training", 120)})
    ]
    markdown = table.table_markdown(grouped(rows), {}).splitlines()
    assert ("recipe lr=0.1" in lines[0]) == (not line)
    assert not line or (line in lines[1] and line in markdown)


@pytest.mark.parametrize("width", [100, 110, 200])
def test_a_training_run_of_a_classifier_with_tf32_fits(width: int) -> None:
    layout = table.lay_out(ROWS, "training", width)
    lines = table.table_lines(grouped(ROWS), choose(ROWS, {}, Budget()), {"training": layout})
    assert max(cell_len(line.plain) for line in lines) <= width
    assert "vs tf32" in lines[1].plain
    assert not layout.hidden


def test_what_arithmetic_knows_stands_below_the_advice_and_fits() -> None:
    layout = table.lay_out(ROWS, "training", 100)
    (group,) = grouped(ROWS)
    grows = state(Hint.ARITHMETIC, text="it grows " * 30)
    advice = {group: Take(group=group, statement=state(Answer.ALONE, precision="fp32"), verdicts=[], hints=[grows])}
    lines = [line.plain for line in table.table_lines(grouped(ROWS), advice, {"training": layout})]
    below = lines[lines.index("→ stay in fp32: every other precision failed") + 1 :]
    assert " ".join(below).split() == ["it", "grows"] * 30
    assert max(map(cell_len, lines)) <= 100
    assert "it grows" in table.table_markdown(grouped(ROWS), advice).splitlines()[-1]


def test_of_two_rows_of_a_precision_the_one_that_is_advised_is_bold() -> None:
    rows = [gpu_row("fp32", 1), gpu_row("bf16_pure", 2), gpu_row("bf16_pure", 3) | {"case_id": "another"}]
    rows = [one | {"phase": "inference"} for one in rows]
    advice = choose(rows, {}, Budget())
    assert [one.case_id for one in advice.values()] == ["another"]
    lines = table.table_lines(grouped(rows), advice, {"inference": table.lay_out(rows, "inference", 100)})
    assert [line.style for line in lines[2:5]] == ["", "", "bold"]


@pytest.mark.parametrize(("width", "without"), [(100, ["FLOP/s", "items/s"]), (120, []), (200, [])])
def test_the_share_of_the_ceiling_stays_before_items_and_floors(width: int, without: list[str]) -> None:
    rows = [row | {"flops_per_second": 4.2e14, "ceiling_share": 0.631} for row in ROWS]
    layout = table.lay_out(rows, "training", width)
    lines = table.table_lines(grouped(rows), choose(rows, {}, Budget()), {"training": layout})
    assert max(cell_len(line.plain) for line in lines) <= width
    assert "63.1%" in lines[2].plain
    assert ("420 T" in lines[2].plain) == ("FLOP/s" not in without)
    assert [column.header for column in layout.hidden] == without


def test_the_error_is_that_of_the_worst_output_with_its_name_beside_it() -> None:
    worst = {"output_worst_rel_l2": 0.64, "output_worst_floor_ratio": 321.0, "output_worst_name": "heads[0].scores"}
    rows = [one | worst for one in ROWS]
    layout = table.lay_out(rows, "training", 120)
    lines = table.table_lines(grouped(rows), choose(rows, {}, Budget()), {"training": layout})
    assert max(cell_len(line.plain) for line in lines) <= 120
    assert "6.4e-01 heads[0].scores" in lines[2].plain
    assert [column.header for column in layout.columns if column.header in ("error", "in")] == ["error", "in"]
    (named,) = [column for column in table.COLUMNS if column.header == "in"]
    assert named.parts[0]({"output_worst_name": "decoder.layers[11].hidden"}) == "…yers[11].hidden"


def test_a_table_without_a_worst_output_has_no_column_for_its_name_though_another_has() -> None:
    worst = {"output_worst_rel_l2": 0.64, "output_worst_floor_ratio": 321.0, "output_worst_name": "scores"}
    named = [one | worst | {"workload": "detector"} for one in ROWS]
    rows = [*ROWS, *named]
    layout = table.lay_out(rows, "training", 120)
    lines = [line.plain for line in table.table_lines(grouped(rows), {}, {"training": layout})]
    plain, other = (next(at for at, line in enumerate(lines) if line.startswith(name)) for name in ("resnet", "detec"))
    assert "in" not in lines[plain + 1].split()
    assert "in" in lines[other + 1].split()
    assert lines[plain + 1].index(" error") == lines[other + 1].index(" error")
    assert "scores" not in "".join(lines[plain:other])
    assert max(map(cell_len, lines[plain:other])) < max(map(cell_len, lines[other:]))


@pytest.mark.parametrize(
    ("agreement", "bound", "cell"),
    [(1.0, 0.9106, "≥91%"), (1.0, 0.99002, "100%"), (0.98, 0.97, "98.0%"), (1.0, None, "100%"), (None, None, "")],
)
def test_what_is_proven_of_an_agreement_stands_in_its_place_where_decisions_are_too_few(
    agreement: float | None, bound: float | None, cell: str
) -> None:
    (argmax,) = [column for column in table.COLUMNS if column.header == "argmax"]
    assert argmax.parts[0]({"argmax_agreement": agreement, "argmax_bound": bound}) == cell


def test_flops_per_second_are_no_column_where_no_ceiling_is_known() -> None:
    rows = [row | {"flops_per_second": 4.2e14} for row in ROWS]
    shown = {column.header for column in table.lay_out(rows, "training", 200).columns}
    assert not shown & {"FLOP/s", "ceiling"}


def test_what_can_be_spared_goes_first_and_the_rest_stays_however_narrow() -> None:
    layout = table.lay_out(ROWS, "training", 30)
    assert [column.header for column in layout.columns] == ["precision", "time/step", "speed"]


def test_the_parts_of_all_phases_stand_under_each_other() -> None:
    rows = [*ROWS, *(gpu_row(precision, 1.0, "inference") for precision in PRECISIONS)]
    rows[-1]["seconds_median"] = 12_345.0
    assert table.lay_out(rows, "training", 100).widths == table.lay_out(rows, "inference", 100).widths


def test_the_title_names_everything_but_the_precision() -> None:
    (group,) = grouped(ROWS)
    assert described(group) == "batch 256 · training · cuda · eager · channels_last · classes=1000 image=224"


def test_an_interval_that_says_nothing_is_not_spelled_out() -> None:
    row = gpu_row("fp32", 1.0) | {"seconds_low": 1e-6, "seconds_high": 10.0}
    lines = table.table_lines(grouped([row]), {}, {"training": table.lay_out([row], "training", 100)})
    assert "234 ms ±99%+" in lines[2].plain


def with_intervals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, but fp32's, with the paired interval of their speed."""
    speeds = [(row, row["speedup_vs_fp32"]) for row in rows]
    return [
        row | {"speedup_low": 0.93 * speed, "speedup_high": 1.07 * speed} if row["precision"] != "fp32" else row
        for row, speed in speeds
    ]


@pytest.mark.parametrize(("width", "without"), [(100, ["items/s"]), (110, []), (120, []), (200, [])])
def test_a_speed_stands_beside_its_paired_interval_and_times_have_none_then(width: int, without: list[str]) -> None:
    rows = with_intervals(ROWS)
    layout = table.lay_out(rows, "training", width)
    lines = [line.plain for line in table.table_lines(grouped(rows), {}, {"training": layout})]
    assert max(map(cell_len, lines)) <= width
    assert "5.12x 4.76–5.48 " in " ".join(next(line for line in lines if line.startswith("fp16_autocast")).split())
    assert "±" not in "".join(lines)
    assert [column.header for column in layout.hidden] == without
    assert "±" not in table.legend(layout.columns)
    assert "paired round by round" in table.legend(layout.columns)
    assert "5.12x 4.76–5.48 |" in table.table_markdown(grouped(rows), {})


def test_where_default_was_measured_its_interval_is_shown_because_advice_goes_by_it() -> None:
    rows = [
        row | {"speedup_vs_default": 2.0, "speedup_default_low": 1.9, "speedup_default_high": 2.1}
        for row in with_intervals(ROWS)
    ]
    layout = table.lay_out(rows, "training", 200)
    lines = [" ".join(line.plain.split()) for line in table.table_lines(grouped(rows), {}, {"training": layout})]
    assert any("5.12x 2.33x 2.00x 1.90–2.10" in line for line in lines)
    assert "4.76" not in "".join(lines)


def test_no_legend_explains_an_interval_that_no_row_has() -> None:
    rows = [row | {"speedup_vs_default": 2.0, "seconds_low": None, "seconds_high": None} for row in ROWS]
    layout = table.lay_out(rows, "training", 200)
    explained = table.legend(layout.columns)
    assert "time/step: median over rounds;" in explained
    assert "speed: times that of fp32 (tf32 off);" in explained
    assert "vs default: speed, times that of what torch ships;" in explained
    assert "interval" not in explained


def test_times_keep_their_interval_where_no_speed_has_one() -> None:
    layout = table.lay_out(ROWS, "training", 200)
    lines = [line.plain for line in table.table_lines(grouped(ROWS), {}, {"training": layout})]
    assert all("±0.4%" in line for line in lines[2:])
    assert "± its 95% interval" in table.legend(layout.columns)


def test_a_row_without_scaler_says_so_wherever_its_precision_is_named() -> None:
    rows = [gpu_row(name, speed, "inference") for name, speed in (("fp32", 1.0), ("fp16_autocast", 4.0))]
    rows[1]["case_id"] += "/no-scaler"
    groups, advice = grouped(rows), choose(rows, {}, Budget())
    lines = table.table_lines(groups, advice, {"inference": table.lay_out(rows, "inference", 100)})
    assert lines[3].plain.startswith("fp16_autocast (no scaler) 58.5 ms")
    assert "| fp16_autocast (no scaler) |" in table.table_markdown(groups, advice)
    (advised,) = advice.values()
    assert advised.precision == "fp16_autocast"
    assert answer(advised.statement).startswith("take fp16_autocast (no scaler): 4.00x")


def test_a_gpu_speaks_for_itself() -> None:
    device = DeviceDescription(
        type="cuda", available=True, name="NVIDIA H200", arithmetic={"bf16": "native", "fp16": "native"}, tf32=True
    )
    statement = device_statement(device, make_header().environment, ["fp32", "fp16_autocast"])
    assert statement == "These numbers speak for this CUDA device (NVIDIA H200: bf16 native, fp16 native)."


@pytest.mark.parametrize(
    ("precisions", "end"),
    [
        (("fp32", "bf16_pure"), "fp16 emulated)."),
        (("fp32", "fp16_autocast"), "; an emulated fp16 says nothing about a GPU."),
        (("fp16_pure",), "; an emulated fp16 says nothing about a GPU."),
        (("another's",), "; an emulated fp16 says nothing about a GPU."),
    ],
)
def test_what_is_emulated_is_spoken_of_where_it_was_measured(precisions: tuple[str, ...], end: str) -> None:
    device = DeviceDescription(type="cpu", available=True, arithmetic={"bf16": "native", "fp16": "emulated"})
    assert device_statement(device, make_header().environment, precisions).endswith(end)


def test_many_skips_for_one_reason_are_one_line() -> None:
    rows = [
        gpu_row("fp32", 1.0) | {"workload": f"net{n}", "outcome": "skipped", "reason": "no loss given"}
        for n in range(6)
    ]
    kept, said = notes.without_common_skips(grouped([*rows, *ROWS]))
    assert [group.workload for group in kept] == ["resnet50"]
    (note,) = said
    assert (note.code, note.facts["why"], note.facts["cases"]) == (Note.SKIPPED, "no loss given", 6)
    assert str(note.facts["names"]).startswith("net0 training eager, net1 training eager")
    assert str(note.facts["names"]).endswith(" and 2 more")


def test_a_reason_of_several_rows_of_one_group_stays_in_its_table() -> None:
    skip = {"workload": "net", "outcome": "skipped", "reason": "no fp16"}
    rows = [gpu_row("fp16_autocast", 1.0) | skip | {"inputs": inputs} for inputs in ("", "float16")]
    kept, said = notes.without_common_skips(grouped([gpu_row("fp32", 1.0) | {"workload": "net"}, *rows, *ROWS]))
    assert next(len(rows) for rows in kept.values()) == 3
    assert not said


@pytest.mark.parametrize(("word", "cell"), [("nan in fp64", "nan"), ("inf", "inf")])
def test_an_error_that_is_not_finite_is_spelled_in_its_cell(word: str, cell: str) -> None:
    row = gpu_row("bf16_pure", 2) | {"output_rel_l2": None, "output_not_finite": word, "output_floor_ratio": None}
    lines = table.table_lines(grouped([row]), {}, {"training": table.lay_out([row], "training", 120)})
    assert cell in lines[2].plain.split()
    assert cell in table.table_markdown(grouped([row]), {})


def test_the_reference_itself_has_no_error() -> None:
    row = gpu_row("fp32", 1) | {"output_rel_l2": None, "grad_rel_l2": None, "reference_dtype": "fp32"}
    line = table.table_lines(grouped([row]), {}, {"training": table.lay_out([row], "training", 120)})[2].plain
    assert line.split().count("ref") == 2
