"""Passes as frames."""

import pandas as pd
import pytest

from ampbench.instruments.ranges.show import headroom_frame, origin_frame, seen_frame
from ampbench.records.ranges import ACTIVATION, UPDATE, WEIGHT, LowRun, OriginPass, Swallowed
from tests.instruments.ranges.range_records import error, passed, values

HEADROOM = [
    *("module", "kind", "what", "name", "elements", "zeros", "nonfinite", "largest"),
    *("fp16_reach", "fp16_overflow", "fp16_flushed", "fp16_subnormal", "fp16_swallowed"),
    *("bf16_reach", "bf16_overflow", "bf16_flushed", "bf16_subnormal", "bf16_swallowed"),
]


def test_a_row_tells_how_values_fit_into_each_format():
    frame = headroom_frame(passed(values("fc", 131072.0, 1e-9, 0.0, float("inf"), 2.0**-15)))
    assert list(frame.columns) == HEADROOM
    (row,) = frame.to_dict("records")
    assert (row["module"], row["what"], row["elements"], row["zeros"], row["nonfinite"]) == ("fc", ACTIVATION, 5, 1, 1)
    assert row["largest"] == 131072.0
    assert row["fp16_reach"] == pytest.approx(131072 / 65504)
    assert (row["fp16_overflow"], row["fp16_flushed"], row["fp16_subnormal"]) == (0.25, 0.25, 0.25)
    assert (row["bf16_overflow"], row["bf16_flushed"]) == (0.0, 0.0)
    assert pd.isna(row["fp16_swallowed"])


def test_only_updates_have_a_share_that_is_swallowed():
    found = passed(
        values("", 1.0, what=WEIGHT, name="w"),
        values("", 1e-4, what=UPDATE, name="w"),
        values("", 0.0, what=UPDATE, name="still"),
        swallowed=[
            Swallowed(parameter="w", dtype="fp16", moved=4, swallowed=4, on_grid=True),
            Swallowed(parameter="w", dtype="bf16", moved=4, swallowed=1, on_grid=True),
            Swallowed(parameter="still", dtype="fp16", moved=0, swallowed=0, on_grid=True),
        ],
    )
    frame = headroom_frame(found)
    assert frame["fp16_swallowed"].isna().tolist() == [True, False, True]
    assert frame["fp16_swallowed"][1] == 1.0
    assert frame["bf16_swallowed"][1] == 0.25


def test_predictions_and_what_was_seen_have_a_row_per_precision_and_module():
    low_runs = [
        LowRun(precision="fp16_pure", modules=[error("fc", None, overflowed=1)]),
        LowRun(precision="bf16_pure", modules=[error("fc", None, elements=0, note="it draws")]),
    ]
    frame = seen_frame(passed(values("fc", 1e6), low_runs=low_runs))
    assert frame["precision"].tolist() == ["fp16_pure", "bf16_pure"]
    assert frame["overflow_predicted"].tolist() == [ACTIVATION, ""]
    assert frame["overflow_seen"].tolist() == [True, None]
    assert frame["flush_seen"].tolist() == [False, None]
    assert frame["note"].tolist() == ["", "it draws"]


def test_errors_have_a_row_per_module_in_the_order_of_running():
    found = OriginPass(
        case_id="case",
        modules=[
            error("a", 3e-3, total_rel_l2=5e-3, sampled=64),
            error("", None, elements=0, note="it writes into its inputs"),
            error("b", None, overflowed=2, flushed=1, inputs_overflowed=3),
        ],
    )
    frame = origin_frame(found)
    assert frame["place"].tolist() == [0, 1, 2]
    assert frame["module"].tolist() == ["a", "", "b"]
    assert frame["inherited"][0] == pytest.approx(4e-3)
    assert frame["inherited"].isna().tolist() == [False, True, True]
    assert frame.loc[2, ["overflowed", "flushed", "inputs_overflowed"]].tolist() == [2, 1, 3]
    assert frame["sampled"].tolist() == [64, 0, 0]
    assert frame["note"][1] == "it writes into its inputs"


def test_empty_passes_have_the_same_columns():
    assert list(headroom_frame(passed()).columns) == HEADROOM
    assert len(headroom_frame(passed(values("a")))) == 1
    filled = seen_frame(passed(values("a", 1.0), low=LowRun(precision="fp16_pure", modules=[error("a")])))
    assert list(seen_frame(passed()).columns) == list(filled.columns)
    origin = OriginPass(case_id="case", modules=[error("a")])
    assert list(origin_frame(OriginPass(case_id="case")).columns) == list(origin_frame(origin).columns)
