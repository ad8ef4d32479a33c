"""Stored runs as one self-contained HTML page: material, views, charts, page.

`material.gather` reads what the page is about, `views` make its sections, `page.make_page` writes it;
`site.make_site` makes the pages of many runs. docs/report.md says what each section shows.
Needs the extra `report`: jinja2 for the templates, vl-convert for the charts.
"""
