"""What holds of a documented example of mixed precision where its workload was measured, on the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ampbench.instruments.claims.findings import Claim, claims_blocks, claims_said, documented_claims
from ampbench.present.document import as_sentence
from ampbench.present.page import Detail, Held, Overview, Part, told_part


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A run that measured the documented workload, and what became of the document's claims."""

    name: str
    claims: Sequence[Claim]

    @property
    def said(self) -> list[str]:
        """How many of the claims hold, for each device and size, in sentences."""
        return [as_sentence(line) for line in claims_said(self.claims)]


def part(held: Held[Any]) -> Part | None:
    """Return the runs shown that measured the documented workload in a low precision, the oldest first."""
    every = [Claimed(name=one.name, claims=documented_claims(one.run, one.rows)) for one in held.measured]
    found = [one for one in every if one.claims]
    if not found:
        return None
    return told_part(
        found,
        id="claims",
        title="Claims of a document",
        said=[],
        detail=_detail,
        sentences=lambda one: one.said,
        overview=Overview(
            caption="How many of the document's claims hold",
            headers=["claims"],
            rows=[(one.name, [one.said]) for one in found],
            first="run",
            wide={"claims"},
        ),
        folded=True,
        what="runs",
    )


def _detail(one: Claimed) -> Detail:
    first, *others = one.said
    said = first if not others else f"{first} And of {len(others):,} more sizes or devices."
    return Detail(name=one.name, said=said, blocks=claims_blocks(one.claims))
