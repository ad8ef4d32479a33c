"""What changed or which precision to take, in words; and what was measured, where, when and with what."""

from dataclasses import fields

from ampbench.present.page import View
from ampbench.report.material import Material
from ampbench.report.measured import LISTED
from ampbench.report.result import result


def banner(material: Material) -> View:
    """Return the view: the page's heading is its verdict or its advice."""
    told = result(material)
    content = {field.name: getattr(told, field.name) for field in fields(told)}
    return View(
        id="result",
        title="Result",
        template="banner.html",
        content=content | {"folded": len(told.runs) > LISTED},
        leads=True,
    )
