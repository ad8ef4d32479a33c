from pathlib import Path

from ampbench.metrics import COLUMNS, METRICS
from ampbench.units import FORMATS

ORDER = """run, case_id, workload, family, parameters, precision, device, phase, path, batch_size, input_dtype,
memory_format, outcome, reason, rounds, seconds_median, seconds_low, seconds_high, items_per_second, speedup_vs_fp32,
speedup_vs_tf32, peak_memory_bytes, memory_source, memory_ratio_vs_fp32, output_rel_l2, output_max_abs, output_cosine,
output_sqnr_db, output_nonfinite, output_floor_ratio, output_fp32_ratio, argmax_agreement, loss_abs_error, grad_rel_l2,
grad_worst_parameter, grad_flushed_share, param_rel_l2, flops_per_step, flops_per_second, ceiling_share,
torch_version"""


def test_the_columns_are_those_promised_in_their_order():
    assert list(COLUMNS) == ORDER.replace("\n", " ").split(", ")


def test_every_metric_has_a_unit_that_can_be_written():
    assert {column.unit for column in METRICS.values()} <= FORMATS.keys()


def test_a_metric_improves_one_way_unless_it_is_the_bound_of_an_interval_or_the_work_asked_for():
    neither = [name for name, metric in METRICS.items() if metric.better is None]
    assert neither == ["seconds_low", "seconds_high", "flops_per_step"]


def test_only_metrics_improve():
    assert all(column.better is None for name, column in COLUMNS.items() if name not in METRICS)


def test_labels_are_short_and_distinct_and_summaries_are_one_line():
    labels = [column.label for column in COLUMNS.values()]
    assert len(set(labels)) == len(labels)
    assert max(map(len, labels)) <= 14
    assert all(column.summary.endswith(".") and "\n" not in column.summary for column in COLUMNS.values())


def test_the_documented_columns_are_these_with_unit_direction_and_summary():
    document = (Path(__file__).parents[1] / "docs" / "results-format.md").read_text(encoding="utf-8")
    rows = [
        f"| `{column.name}` | {column.unit} | {column.better or ''} | {column.summary} |" for column in COLUMNS.values()
    ]
    assert "\n".join(rows) in document
