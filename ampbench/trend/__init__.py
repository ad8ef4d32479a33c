"""Runs in order: series over torch versions, commits or dates, and where they changed.

`reducing.read_runs` reads the named runs, `building.make_trend` puts them on an axis and looks for changes;
`series.Trend` has everything that tables and reports show. docs/trends.md has the rules.
"""
