"""Stored runs as one self-contained HTML page: material, views, charts, page.

`material.gather` reads what the page is about, `page.make_page` writes it, `markdown.make_markdown` in short;
`page.make_site` makes the pages of many runs. `page.VIEWS` lists the sections; docs/report.md says what each shows.
Needs the extra `report`: jinja2 for the templates, vl-convert for the charts.
"""
