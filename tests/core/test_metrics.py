from ampbench.core.metrics import COLUMNS


def test_labels_are_short_and_distinct_and_summaries_are_one_line():
    labels = [column.label for column in COLUMNS.values()]
    assert len(set(labels)) == len(labels)
    assert max(len(label.removeprefix("late ")) for label in labels) <= 15
    assert all(column.summary.endswith(".") and "\n" not in column.summary for column in COLUMNS.values())
