"""Runs in order: series over torch versions, commits or dates, and where they changed.

`reducing.read_runs` takes what a user names, `building.make_trend` puts the runs on an axis and looks for changes;
`series.Trend` holds all that tables and reports show. docs/trends.md has the rules.
"""
