"""What studies found of how to train, of stored inputs and of what devices attain.

Each part is a function from the material to a `Part`, None where no run holds its data; all have one template.
"""

from collections.abc import Callable

from ampbench.present.page import Part, View
from ampbench.report.material import Material
from ampbench.report.views.part import view_of
from ampbench.report.views.studies.ceilings import ceilings
from ampbench.report.views.studies.claims import claims
from ampbench.report.views.studies.convergence import convergence
from ampbench.report.views.studies.input_storage import input_storage
from ampbench.report.views.studies.scaler import scaler
from ampbench.report.views.studies.scope import scope

PARTS: tuple[Callable[[Material], Part | None], ...] = (
    convergence,
    scaler,
    scope,
    input_storage,
    ceilings,
    claims,
)


def studies(material: Material) -> View | None:
    """Return the view; None where no run holds data for any part."""
    return view_of(material, PARTS, id="studies", title="Studies")
