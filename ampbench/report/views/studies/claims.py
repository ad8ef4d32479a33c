"""Claims of a document: what holds of a documented example of mixed precision where its workload was measured."""

from dataclasses import replace

from ampbench.instruments.claims import claims_blocks, claims_said
from ampbench.present.document import as_sentence
from ampbench.present.page import Detail, Overview, Part, told_part, with_overview
from ampbench.report.explained import Claimed, claimed
from ampbench.report.material import Material


def claims(material: Material) -> Part | None:
    """Return the runs shown that measured the documented workload."""
    found = claimed(material)
    if not found:
        return None
    part = told_part(
        found,
        (),
        id="claims",
        title="Claims of a document",
        said=[],
        detail=_detail,
    )
    rows = [(one.name, [[as_sentence(said) for said in claims_said(one.claims)]]) for one in found]
    caption = "How many of the document's claims hold"
    return with_overview(
        replace(part, folded=True),
        Overview(caption=caption, headers=["claims"], rows=rows, first="run", wide={"claims"}),
    )


def _detail(one: Claimed) -> Detail:
    first, *others = map(as_sentence, claims_said(one.claims))
    said = first if not others else f"{first} And of {len(others):,} more sizes or devices."
    return Detail(name=one.name, said=said, blocks=claims_blocks(one.claims))
