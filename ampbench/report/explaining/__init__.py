"""Why numbers are what they are, as far as the runs on the page tell: the parts of the section "Explanation".

Each part is a function from the material to a `Part`, None where no run holds its data, and a block of the template
`explanation.html`. A new part is one more of both.
"""

from collections.abc import Callable

from ampbench.report.explaining.breaking import failures, remarks
from ampbench.report.explaining.gradients import gradients
from ampbench.report.explaining.part import Part
from ampbench.report.explaining.scaling import scaling
from ampbench.report.material import Material

PARTS: tuple[Callable[[Material], Part | None], ...] = (gradients, scaling, failures, remarks)

__all__ = ["PARTS", "Part"]
