"""Stored runs as one self-contained HTML page: material, views, charts, page.

`material.gather` reads the runs, `views` make the sections, `page.make_page` writes the page, `page.make_site` the
pages of many runs. docs/report.md describes each section.
Needs the extra `report`: jinja2 for the templates, vl-convert for the charts.
"""
