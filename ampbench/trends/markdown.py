"""The changes of a trend as Markdown."""

from ampbench.markdown import markdown_table
from ampbench.trends import Trend
from ampbench.trends.sentences import Names, changes_in_order, levels, place_name, size


def changes_table(trend: Trend, names: Names) -> str:
    """Return a table of all changes, a line each, with the place where there are several; "" where nothing changed."""
    several = len(trend.places) > 1
    rows = [
        (change.x.label, *([place_name(one.place)] if several else []), names[one.key], one.metric.name,
         *levels(one, change), size(change), change.direction, change.what)
        for one, change in changes_in_order(trend)
    ]  # fmt: skip
    headers = ["x", "case", "metric", "before", "after", "change", "", "what else changed"]
    headers[1:1] = ["place"] if several else []
    return markdown_table(headers, rows, left=("place", "case", "metric", "", "what else changed")) if rows else ""
