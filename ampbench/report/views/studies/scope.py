"""Scope of autocast: what entering it around less or more than forward and loss costs."""

from ampbench.blocks import as_sentence
from ampbench.labels import few
from ampbench.records.runs import SCOPE
from ampbench.records.studies import ScopePass
from ampbench.report.explained import Told, untold
from ampbench.report.material import Material
from ampbench.report.studied import scopes, stale
from ampbench.report.views.part import Detail, Part, strange, told_part
from ampbench.report.views.studies.drawing import drawn
from ampbench.report.views.studies.scope_charts import DRAWINGS
from ampbench.report.views.studies.telling import Overview, detail_of, with_overview
from ampbench.studied.scope.blocks import scope_section
from ampbench.studied.scope.sentences import scope_said
from ampbench.units import counted


def scope(material: Material) -> Part | None:
    """Return the cases that were trained in several scopes, those first that read stale weights."""
    found, missing = scopes(material), untold(material, SCOPE)
    if not (found or missing):
        return None
    charts, datasets, said = drawn(found, *DRAWINGS)
    part = told_part(
        found,
        missing,
        id="scope",
        title="Scope of autocast",
        said=[*_said(found), *strange(material, SCOPE, "Trained"), *said],
        detail=_detail,
        drawn=(charts, datasets),
    )
    rows = [(one.name, [[as_sentence(line) for line in scope_said(one.case, one.found)]]) for one in found]
    caption = "What each scope of autocast costs beside the one that PyTorch recommends"
    return with_overview(part, Overview(caption=caption, headers=["scopes"], rows=rows, wide={"scopes"}))


def _said(found: list[Told[ScopePass]]) -> list[str]:
    if len(found) < 2:
        return []
    reading = [one for one in found if stale(one.found)]
    which = f": {few(one.name for one in reading)}" if reading else ""
    return [f"Of {counted(len(found), 'case')}, {len(reading) or 'none'} with a scope that reads stale weights{which}."]


def _detail(one: Told[ScopePass]) -> Detail:
    return detail_of(one.name, scope_section(one.case, one.found, everything=True), ["Losses"])
