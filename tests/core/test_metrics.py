import os
from pathlib import Path

from ampbench.core.metrics import COLUMNS


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
