"""Stored runs as one self-contained HTML page: material, views, charts, page.

`gather` reads what the page is about, `make_page` writes it, `make_markdown` in short; `make_site` makes the pages of
many runs. `VIEWS` lists the sections; docs/report.md says what each shows. Needs the extra `report`: jinja2 for the
templates, vl-convert for the charts.
"""

from ampbench.report.markdown import make_markdown
from ampbench.report.material import Material, Shown, ShownCase, gather
from ampbench.report.page import make_page
from ampbench.report.site import Site, make_site
from ampbench.report.views import VIEWS

__all__ = ["VIEWS", "Material", "Shown", "ShownCase", "Site", "gather", "make_markdown", "make_page", "make_site"]
