"""Why numbers are what they are, as far as the runs on the page tell.

Each part is a function from the material to a `Part`, None where no run holds its data, and a block of the template
`explanation.html`. A new part is one more of both.
"""

from collections.abc import Callable

from ampbench.present.page import Part, View
from ampbench.report.material import Material
from ampbench.report.views.explanation.casts import casts
from ampbench.report.views.explanation.gradients import failures, gradients, remarks, scaling
from ampbench.report.views.explanation.headroom import headroom
from ampbench.report.views.explanation.keep_fp32 import keeping
from ampbench.report.views.explanation.origin import origin
from ampbench.report.views.explanation.rules import rules
from ampbench.report.views.part import view_of

PARTS: tuple[Callable[[Material], Part | None], ...] = (
    headroom,
    origin,
    keeping,
    casts,
    gradients,
    scaling,
    rules,
    failures,
    remarks,
)


def explanation(material: Material) -> View | None:
    """Return the view; None where no run holds data for any part."""
    return view_of(material, PARTS, id="explanation", title="Explanation")
