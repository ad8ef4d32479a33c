"""What the modules of cases give, on the page."""

from ampbench.instruments.shapes.findings import shapes_said
from ampbench.instruments.shapes.records import ShapesPass
from ampbench.instruments.shapes.show import shapes_section
from ampbench.present.document import as_sentence
from ampbench.present.page import Held, Overview, Part, detail_of, sentences_of, told_part


def part(held: Held[ShapesPass]) -> Part | None:
    """Return the cases whose modules were watched."""
    if not (held.told or held.untold):
        return None
    return told_part(
        held.told,
        id="shapes",
        title="Shapes",
        said=held.strangers_said("Watched"),
        detail=lambda one: detail_of(one.name, shapes_section(one.case, one.found, everything=True)),
        sentences=lambda one: sentences_of(shapes_section(one.case, one.found)),
        overview=Overview(
            caption="What the modules of each case give",
            headers=["modules"],
            rows=[(one.name, [[as_sentence(line) for line in shapes_said(one.found)]]) for one in held.told],
            wide={"modules"},
        ),
        untold=held.untold,
    )
