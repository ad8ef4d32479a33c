import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from msgspec.structs import replace

import ampbench
from ampbench.core.metrics import COLUMNS, LATER, METRICS
from ampbench.judge.frame import FUNCTIONS, Frame, run_rows
from ampbench.judge.rounds import MeasuredRun, control_ratio
from ampbench.records.changes import VERDICT_COLUMNS
from ampbench.records.measured import OptimizerGroup, OutputError, Predictions, Reading, Recipe, Skip
from ampbench.records.run import Footer
from ampbench.store import StoredRun, read_run
from tests.stored_runs import (
    COMPLETE,
    RUN,
    change_divergence,
    make_case,
    make_ceiling,
    make_divergence,
    make_memory,
    make_round,
    write_run,
)

FP32, TF32, BF16 = make_case("fp32"), make_case("tf32"), make_case("bf16_autocast")


def test_a_column_is_stored_or_computed():
    assert {name for name, column in COLUMNS.items() if not column.of and not name.endswith(LATER)} == FUNCTIONS.keys()


def rows_of(tmp_path, cases, *entries, **header):
    frame = ampbench.load(write_run(tmp_path, cases, *entries, **header))
    return frame.set_index("case_id", drop=False)


def test_a_row_holds_the_case_and_the_run(tmp_path):
    row = rows_of(tmp_path, [BF16], make_round(BF16)).iloc[0]
    assert list(row.index) == [*COLUMNS, *VERDICT_COLUMNS]
    assert row["run"] == RUN
    assert row["case_id"] == BF16.case_id
    assert row["parameters"] == "depth=4,width=512"
    assert row["family"] == "linear"
    assert row["batch_size"] == 8
    assert row["torch_version"] == "2.15.0"
    assert row["outcome"] == "ok"
    assert row["reason"] is None


def test_metrics_are_floats_and_text_is_text(tmp_path):
    frame = rows_of(tmp_path, [FP32])
    assert {str(frame[name].dtype) for name in METRICS} == {"float64"}
    assert str(frame["batch_size"].dtype) == "Int64"
    assert frame["rounds"].dtype.kind == "i"
    assert str(frame["reason"].dtype) == "object"


def test_time_is_the_median_over_rounds_of_their_fastest_samples(tmp_path):
    samples = [[[7.0], [5.0, 8.0, 9.0], [5.5, 5.5]], [[4.0]], [[6.0]]]
    rounds = [make_round(FP32, number=number, samples=each) for number, each in enumerate(samples)]
    row = rows_of(tmp_path, [FP32], *rounds).iloc[0]
    assert row["rounds"] == 3
    assert row["seconds_median"] == 5.0
    assert row["seconds_low"] < 5.0 < row["seconds_high"]
    assert row["items_per_second"] == pytest.approx(8 / 5.0)


def test_rounds_of_the_control_are_not_the_cases_own(tmp_path):
    path = write_run(
        tmp_path, [FP32, BF16], *(make_round(FP32, seconds) for seconds in (1.0, 1.2, 0.9)),
        make_round(FP32, 1.1, control=True), make_round(BF16, 0.5), make_round(FP32, 0.8, confirmation=True),
    )  # fmt: skip
    frame = ampbench.load(path)
    assert frame["rounds"].tolist() == [4, 1]
    assert frame["seconds_median"].tolist() == [0.95, 0.5]
    control = control_ratio(read_run(path))
    assert (control.case_id, control.own.tolist(), control.again.tolist()) == (
        FP32.case_id,
        [1.0, 1.2, 0.9, 0.8],
        [1.1],
    )
    assert control.ratio == pytest.approx(1.1 / 0.95)
    assert control_ratio(read_run(write_run(tmp_path / "once", [FP32], make_round(FP32, 1.0)))) is None
    assert dataclasses.replace(control, own=control.again, again=control.own).apart == control.apart


def test_a_speedup_is_against_the_same_case_in_fp32_and_in_tf32(tmp_path):
    other = make_case("bf16_autocast", batch_size=16)
    entries = [make_round(case, seconds) for case, seconds in ((FP32, 3.0), (TF32, 2.0), (BF16, 1.0), (other, 1.0))]
    frame = rows_of(tmp_path, [BF16, FP32, TF32, other], *entries)
    assert frame["speedup_vs_fp32"].tolist()[:3] == [3.0, 1.0, 1.5]
    assert frame["speedup_vs_tf32"].tolist()[:3] == [2.0, pytest.approx(2 / 3), 1.0]
    assert math.isnan(frame["speedup_vs_fp32"].iloc[3])


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters": {"depth": 5, "width": 512}},
        {"device": "cuda"},
        {"path": "compiled"},
        {"batch_size": None},
        {"sdpa": "math"},
        {"recipe": "adamw-lm"},
    ],
)
def test_a_case_that_differs_in_more_than_precision_is_no_baseline(tmp_path, changes):
    other = make_case("bf16_autocast", **changes)
    row = rows_of(tmp_path, [FP32, other], make_round(FP32), make_round(other)).loc[other.case_id]
    assert math.isnan(row["speedup_vs_fp32"])
    assert row["outcome"] == "ok"


def test_the_input_dtype_and_the_scaler_follow_the_precision_to_the_same_baseline(tmp_path):
    stored = make_case("fp32", input_dtype="bf16")
    pure = make_case("bf16_pure", input_dtype="bf16")
    bare = make_case("fp16_autocast", scaler=False)
    entries = [make_round(stored, 9.0), make_round(FP32, 2.0), make_round(pure, 1.0), make_round(bare, 4.0)]
    frame = rows_of(tmp_path, [stored, FP32, pure, bare], *entries)
    assert frame["speedup_vs_fp32"].tolist() == [pytest.approx(2 / 9), 1.0, 2.0, 0.5]


def test_a_training_names_its_optimizer_and_what_changes_it(tmp_path):
    training = [make_case("fp32", phase="training", recipe=recipe) for recipe in ("", "clip=2", "finetune", "lr=1")]
    group = OptimizerGroup(elements=1, lr=3e-4, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8, fused=True)
    adamw = Recipe(optimizer="torch.optim.AdamW", groups=[group])
    compared = [make_divergence(case, recipe=adamw) for case in training[:3]]
    cases = [*training, make_case("fp32", phase="training", workload="other"), FP32]
    entries = [*compared, make_divergence(cases[-2]), make_divergence(FP32)]
    row = "AdamW lr=0.0003 weight_decay=0.1 beta2=0.95 fused"
    names = rows_of(tmp_path, cases, *map(make_round, cases), *entries)["optimizer"].tolist()
    assert names == [row, f"{row} clip=2", f"{row} clip=1 (finetune)", None, "none", None]


def drifting_rounds(ratios, start=0):
    """Rounds of fp32 that take longer and longer, and of bf16 beside them: 1 / each of `ratios` of the time."""
    took = [10.0 * 1.3**number for number in range(len(ratios))]
    pairs = enumerate(zip(took, ratios, strict=True), start=start)
    return [
        one
        for number, (seconds, ratio) in pairs
        for one in (make_round(FP32, seconds, number), make_round(BF16, seconds / ratio, number))
    ]


def test_the_interval_of_a_speedup_is_that_of_the_ratios_round_by_round(tmp_path):
    ratios = [1.5, 1.6, 1.4, 1.55]
    control = make_round(BF16, 1.0, 9, control=True)
    frame = rows_of(tmp_path, [BF16, FP32], *reversed(drifting_rounds(ratios)), control)
    logs = np.log(ratios)
    low, high = scipy.stats.t.interval(0.95, 3, loc=logs.mean(), scale=scipy.stats.sem(logs))
    row = frame.loc[BF16.case_id]
    assert (row["speedup_low"], row["speedup_high"]) == pytest.approx((math.exp(low), math.exp(high)))
    assert row["seconds_high"] / row["seconds_low"] > 2 * row["speedup_high"] / row["speedup_low"]
    assert math.isnan(frame.loc[FP32.case_id, "speedup_low"])
    assert math.isnan(frame.loc[FP32.case_id, "speedup_high"])


def test_without_three_common_rounds_the_interval_of_a_speedup_is_what_both_times_leave_open(tmp_path):
    ours = [make_round(BF16, seconds, number) for number, seconds in enumerate((1.0, 1.1, 1.2))]
    theirs = [make_round(FP32, seconds, number + 2) for number, seconds in enumerate((2.0, 2.1, 2.2))]
    frame = rows_of(tmp_path, [FP32, BF16], *ours, *theirs)
    row, baseline = frame.loc[BF16.case_id], frame.loc[FP32.case_id]
    assert row["speedup_low"] == pytest.approx(baseline["seconds_low"] / row["seconds_high"])
    assert row["speedup_high"] == pytest.approx(baseline["seconds_high"] / row["seconds_low"])


def test_the_busy_share_is_the_devices_work_by_the_time_of_a_step_and_never_over_one(tmp_path):
    cases = [make_case(name) for name in ("fp32", "bf16_autocast", "fp16_autocast", "tf32")]
    rounds = [make_round(case, 0.010, number=number) for case in cases[:3] for number in range(3)]
    busy = [make_memory(case, 1, busy_seconds=one) for case, one in zip(cases, (0.004, 0.0101, None, 0.1), strict=True)]
    found = rows_of(tmp_path, cases, *rounds, *busy)["busy_share"].tolist()
    assert found[:2] == [pytest.approx(0.4), 1.0]
    assert all(map(math.isnan, found[2:])), "not known, or no time to hold it against"


def test_memory_is_compared_only_with_memory_counted_the_same_way(tmp_path):
    allocator = make_case("bf16_pure")
    entries = [make_memory(FP32, 400), make_memory(BF16, 300), make_memory(allocator, 100, "allocator")]
    rounds = [make_round(case) for case in (FP32, BF16, allocator)]
    frame = rows_of(tmp_path, [FP32, BF16, allocator], *entries, *rounds)
    assert frame["peak_memory_bytes"].tolist() == [400, 300, 100]
    assert frame["memory_source"].tolist() == ["profiler", "profiler", "allocator"]
    assert frame["memory_ratio_vs_fp32"].tolist()[:2] == [1.0, 0.75]
    assert math.isnan(frame["memory_ratio_vs_fp32"].iloc[2])


def test_the_share_of_the_ceiling_is_the_time_at_each_dtypes_best_rate_over_the_time_taken(tmp_path):
    ceilings = [
        make_ceiling("bf16", 150e9),
        make_ceiling("bf16", 900e9, "copy"),
        make_ceiling("fp32", 50e9),
        make_ceiling("fp32", 900e9, device="cuda"),
    ]
    flops = {"bf16": 3 * 10**9, "fp32": 10**9}
    row = rows_of(tmp_path, [BF16], *ceilings, make_memory(BF16, 1, flops=flops), make_round(BF16, 0.1)).iloc[0]
    assert row["ceiling_share"] == pytest.approx((3 / 150 + 1 / 50) / 0.1)


def test_each_operation_is_held_against_its_own_ceiling_and_what_binds_is_named(tmp_path):
    ceilings = [make_ceiling("fp32", 50e9), make_ceiling("fp32", 100e9, "conv"), make_ceiling("fp32", 1e9, "read")]
    apart = {"matmul": {"fp32": 10**9}, "conv": {"fp32": 3 * 10**9}}
    for moved, share, binds in ((None, 1 / 50 + 3 / 100, "convolutions"), (2 * 10**9, 2.0, "memory")):
        memory = make_memory(FP32, 1, flops={"fp32": 4 * 10**9}, flops_by_operation=apart, least_bytes=moved)
        row = rows_of(tmp_path / binds, [FP32], *ceilings, memory, make_round(FP32, 0.1)).iloc[0]
        assert row["ceiling_share"] == pytest.approx(share / 0.1)
        assert row["bound_by"] == binds
        assert row["least_bytes_per_step"] == moved or math.isnan(row["least_bytes_per_step"])


def test_what_one_norm_hides_is_derived_from_outputs_and_predictions(tmp_path):
    outputs = [
        OutputError(
            name="boxes", elements=8, rel_l2=1e-4, floor_rel_l2=1e-3, sample_p99_rel_l2=2e-4, sample_worst_rel_l2=0.3
        ),
        OutputError(name="scores", elements=8, rel_l2=0.6, floor_rel_l2=0.2, centred=True, sample_p99_rel_l2=0.1),
        OutputError(name="noise", elements=8, undefined="chance alone makes it 1.0e+00"),
    ]
    divergence = make_divergence(
        BF16,
        output_rel_l2=2e-4,
        outputs=outputs,
        predictions=Predictions(outputs=["scores"], rows=8, kl_mean=0.02, kl_p99=0.3),
        argmax_agreeing=32,
        argmax_decisions=32,
        loss=2.5,
        reference_loss=-2.0,
    )
    row = rows_of(tmp_path, [BF16], divergence).iloc[0]
    expected = {
        "output_worst_rel_l2": 0.6,
        "output_worst_floor_ratio": 3.0,
        "sample_p99_rel_l2": 0.1,
        "sample_worst_rel_l2": 0.3,
        "kl_mean": 0.02,
        "kl_p99": 0.3,
        "argmax_bound": scipy.stats.beta.ppf(0.05, 32, 1),
        "loss_rel_error": 2.25,
    }
    assert row[list(expected)].to_dict() == pytest.approx(expected)
    assert row["output_worst_name"] == "scores"


def test_the_noisiest_output_is_no_classifiers(tmp_path):
    values = {"boxes": 0.01, "depth": 3.0, "scores": 50.0, "mask": None}
    outputs = [OutputError(name=name, elements=8, rel_l2=0.1, over_spread=value) for name, value in values.items()]
    predictions = Predictions(outputs=["scores"], rows=8)
    found = make_divergence(BF16, outputs=outputs, predictions=predictions)
    row = rows_of(tmp_path, [BF16], found).iloc[0]
    assert (row["output_over_spread"], row["output_spread_name"]) == (3.0, "depth")
    lone = make_divergence(BF16, outputs=[replace(outputs[2], name="")], predictions=predictions)
    row = rows_of(tmp_path / "lone", [BF16], change_divergence(lone, predictions=None)).iloc[0]
    assert (row["output_over_spread"], row["output_spread_name"]) == (50.0, None)
    row = rows_of(tmp_path / "class", [BF16], change_divergence(found, outputs=outputs[2:])).iloc[0]
    assert (math.isnan(row["output_over_spread"]), row["output_spread_name"]) == (True, None)


def test_what_was_not_measured_or_has_no_denominator_is_undefined(tmp_path):
    divergence = make_divergence(
        BF16, output_rel_l2=0.0, output_floor_rel_l2=0.0, argmax_agreeing=0, argmax_decisions=0
    )
    row = rows_of(tmp_path, [BF16], make_round(BF16), divergence).iloc[0]
    undefined = ("output_sqnr_db", "output_floor_ratio", "output_fp32_ratio", "argmax_agreement", "loss_abs_error")
    assert all(math.isnan(row[name]) for name in undefined)
    assert row["output_rel_l2"] == 0
    assert row["grad_worst_parameter"] is None
    assert math.isnan(row["peak_memory_bytes"])


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([], "not measured yet"),
        ([COMPLETE], "not measured yet"),
        ([Footer(ended="out of time", finished_at="2026-01-31T12:01:00Z")], "not reached within the time given"),
        ([Skip(case_id=FP32.case_id, reason="no loss given"), COMPLETE], "no loss given"),
        ([make_memory(FP32, 1), Footer(ended="interrupted", finished_at="2026-01-31T12:01:00Z")], "not measured yet"),
    ],
)
def test_a_case_without_rounds_is_skipped_with_the_reason(tmp_path, entries, reason):
    row = rows_of(tmp_path, [FP32], *entries).iloc[0]
    assert (row["outcome"], row["reason"], row["rounds"]) == ("skipped", reason, 0)
    assert math.isnan(row["seconds_median"])


def test_a_file_is_that_run_and_a_folder_all_of_them(tmp_path):
    first = write_run(tmp_path, [FP32, BF16], run="20260130T090000Z-bench-aaa111")
    write_run(tmp_path, [FP32], run="20260131T090000Z-bench-bbb222")
    assert len(ampbench.load(first)) == 2
    assert len(ampbench.load(str(first))) == 2
    for folder in (tmp_path, tmp_path / "runs"):
        frame = ampbench.load(folder)
        assert frame["run"].str[-6:].tolist() == ["aaa111", "aaa111", "bbb222"]
        assert frame.index.tolist() == [0, 1, 2]
        assert list(frame.columns) == [*COLUMNS, *VERDICT_COLUMNS]


def test_a_cut_run_is_loaded_with_a_warning(tmp_path):
    path = write_run(tmp_path, [FP32], make_round(FP32), COMPLETE)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="ends in a cut line"):
        assert ampbench.load(path)["rounds"].tolist() == [1]


def frame_of(stored: StoredRun) -> pd.DataFrame:
    return Frame(MeasuredRun.of(stored)).to_pandas()


def test_rows_of_a_run_are_those_of_its_frame(tmp_path):
    readings = [Reading(case_id=TF32.case_id, metric="seconds_median", value=1e-3)]
    entries = [
        *(make_round(FP32, number=number) for number in range(3)),
        make_memory(FP32, 4096),
        make_divergence(FP32),
    ]
    stored = read_run(
        write_run(tmp_path, [FP32, TF32, make_case("bf16_autocast", batch_size=None)], *entries, *readings)
    )
    frame = frame_of(stored)
    undefined = frame.isna().to_dict("records")
    for row, cells, lacks in zip(run_rows(stored), frame.to_dict("records"), undefined, strict=True):
        assert row == {name: None if lacks[name] else value for name, value in cells.items()}


def reading(case, metric, value):
    return Reading(case_id=case.case_id, metric=metric, value=value)


def test_readings_fill_the_columns_that_have_no_raw_numbers(tmp_path):
    frame = rows_of(
        tmp_path,
        [FP32, BF16, TF32],
        make_round(FP32, 4e-3),
        make_memory(FP32, 100),
        reading(FP32, "seconds_median", 9.0),
        reading(FP32, "peak_memory_bytes", 9.0),
        reading(BF16, "seconds_median", 1e-3),
        reading(BF16, "seconds_low", 0.9e-3),
        reading(BF16, "items_per_second", 8000.0),
        reading(BF16, "output_floor_ratio", 1.5),
    )
    assert frame["seconds_median"].tolist()[:2] == [4e-3, 1e-3]
    assert frame["peak_memory_bytes"].tolist()[0] == 100
    bf16 = frame.loc[BF16.case_id]
    assert (bf16["seconds_low"], bf16["items_per_second"], bf16["output_floor_ratio"]) == (0.9e-3, 8000, 1.5)
    assert bf16["speedup_vs_fp32"] == 4
    assert frame["outcome"].tolist() == ["ok", "ok", "skipped"]
