import os
from pathlib import Path

from ampbench.core.metrics import COLUMNS, METRICS
from ampbench.core.units import FORMATS


def test_every_metric_has_a_unit_that_can_be_written():
    assert {column.unit for column in METRICS.values()} <= FORMATS.keys()


def test_a_metric_improves_one_way_unless_it_is_the_bound_of_an_interval_or_the_work_asked_for():
    neither = [name for name, metric in METRICS.items() if metric.better is None]
    assert neither == [
        "seconds_low",
        "seconds_high",
        "speedup_low",
        "speedup_high",
        "speedup_default_low",
        "speedup_default_high",
        "scaler_scale",
        "input_largest",
        "target_largest",
        "busy_share",
        "flops_per_step",
        "least_bytes_per_step",
        "late_steps",
        "late_batches",
        "scaler_scale_late",
    ]


def test_only_metrics_improve():
    assert all(column.better is None for name, column in COLUMNS.items() if name not in METRICS)


def test_labels_are_short_and_distinct_and_summaries_are_one_line():
    labels = [column.label for column in COLUMNS.values()]
    assert len(set(labels)) == len(labels)
    assert max(len(label.removeprefix("late ")) for label in labels) <= 15
    assert all(column.summary.endswith(".") and "\n" not in column.summary for column in COLUMNS.values())


def test_the_documented_columns_are_these_with_unit_direction_and_summary():
    """`RENEW=1 pytest` writes them anew."""
    document = Path(__file__).parents[2] / "docs" / "results-format.md"
    rows = [
        f"| `{column.name}` | {column.unit} | {column.better or ''} | {column.summary} |" for column in COLUMNS.values()
    ]
    before, head, after = document.read_text(encoding="utf-8").partition("| column | unit | better | what |\n")
    text = before + head + "\n".join(["|---|---|---|---|", *rows, after[after.index("\n\n") + 1 :]])
    if os.environ.get("RENEW"):
        document.write_text(text, encoding="utf-8")
    assert text == document.read_text(encoding="utf-8")
