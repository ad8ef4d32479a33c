"""How long the first steps of cases take, on the page."""

from ampbench.base.units import UNDEFINED
from ampbench.instruments.warmup.findings import warmup_said
from ampbench.instruments.warmup.records import WarmUp
from ampbench.instruments.warmup.show import warmup_section
from ampbench.present.page import Held, Overview, Part, detail_of, sentences_of, told_part


def part(held: Held[WarmUp]) -> Part | None:
    """Return the cases whose first steps were timed."""
    if not (held.told or held.untold):
        return None
    settled = [(one.name, [UNDEFINED if one.found.settled is None else str(one.found.settled)]) for one in held.told]
    return told_part(
        held.told,
        id="warmup",
        title="Warm-up",
        said=held.strangers_said("Timed"),
        detail=lambda one: detail_of(one.name, warmup_section(one.case, one.found, everything=True)),
        sentences=lambda one: sentences_of(warmup_section(one.case, one.found)),
        finding=lambda one: warmup_said(one.found)[0],
        overview=Overview(
            caption="After how many steps each case settled", headers=["settled"], rows=settled, numbers={"settled"}
        ),
        untold=held.untold,
    )
