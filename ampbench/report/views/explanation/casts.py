"""Casts: what autocast and others cast in a step, what that costs, and what could be saved of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ampbench.beside import saved_time, saving_said
from ampbench.blocks import Block
from ampbench.casts import blocks
from ampbench.casts.costs import costs
from ampbench.casts.inside import casts_inside
from ampbench.records.casts import CheckedSaving
from ampbench.records.runs import CASTS
from ampbench.report.explained import Traced, changed, traced, untold
from ampbench.report.material import Material
from ampbench.report.views.explanation.timeline import timelines
from ampbench.report.views.part import Detail, Part, cut, strange, told_part
from ampbench.units import UNDEFINED, counted, format_bytes, format_seconds, format_share

FAKE_SAID = "fake tensors, not on hardware"


def casts(material: Material) -> Part | None:
    """Return the traced cases, those first whose casts take the most time or, untimed, move the most bytes."""
    found, missing, differing = traced(material), untold(material, CASTS), changed(material)
    if not (found or missing or differing):
        return None
    charts, datasets, said = timelines(found)
    return told_part(
        found,
        missing,
        id="casts",
        title="Casts",
        said=[*_said(found), *strange(material, CASTS, "Traced"), *said],
        row=_row,
        detail=_detail,
        drawn=(charts, datasets),
        changed=differing,
    )


def casts_said(one: Traced) -> str:
    """Return what the casts of a case cost, where it was tried what a change saves, and what is in doubt."""
    where = f" ({FAKE_SAID})" if one.fake else ""
    tried = [f"{each.change}: {checked_said(each)}" for each in one.found.checked]
    return "; ".join([f"{one.said}{where}", *tried, *costs(one.found, one.whole).doubts])


def checked_said(one: CheckedSaving) -> str:
    """Return what came of a change that was made and measured."""
    return f"{counted(one.casts, 'cast')} a step fewer, {saving_said(one)}"


def _said(found: Sequence[Traced]) -> list[str]:
    if not found:
        return []
    worst = found[0]
    which = worst.name
    if len(found) > 1:
        which = f"Of {len(found):,} traced cases, casts cost the most in {worst.name}"
    said = [f"{which}: {worst.said}."]
    fakes = [one for one in found if one.fake]
    if fakes:
        which = "1 of the cases was" if len(fakes) == 1 else f"{len(fakes):,} of the cases were"
        which = which if len(fakes) < len(found) else "This was" if len(found) == 1 else "All were"
        said.append(f"{which} traced on {FAKE_SAID}: the casts are those of this torch, and nothing is timed.")
    if certain := [(one, each) for one in found for each in one.found.checked if saved_time(each).certain]:
        one, best = max(certain, key=lambda each: _factor(each[1]))
        said.append(f"Measured: {best.change} in {one.name}: {checked_said(best)}.")
    return said


def _factor(one: CheckedSaving) -> float:
    saved = saved_time(one)
    return saved.before / saved.after


def _row(one: Traced) -> Mapping[str, Any]:
    """Return a case as a row of the table of all."""
    whole = one.whole
    saved = sum(len(saving.casts) for saving in one.savings)
    best = max(one.found.checked, key=lambda each: saved_time(each).seconds, default=None)
    return {
        "name": one.name,
        "numbers": [
            f"{whole.casts:,}",
            format_bytes(whole.bytes_moved),
            format_seconds(whole.seconds),
            format_share(whole.share),
            f"{saved:,}",
        ],
        "measured": f"{best.change}: {checked_said(best)}" if best else UNDEFINED,
        "how": f"{one.case.device}: {FAKE_SAID}" if one.fake else one.case.device,
    }


def _detail(one: Traced) -> Detail:
    found = one.found
    notes = [*casts_inside(found.trace), *found.notes]
    told = [*blocks.headline(found, one.case)[1:], *map(Block, notes)]
    told += blocks.dearest_ops(found)
    for make in (blocks.origins, blocks.weights_used, blocks.saved, blocks.ops_that_cast):
        told += [cut(each) for each in make(found, True)]
    collapsed = len(found.trace.modules) > blocks.FEW_MODULES
    folded = {
        "Dtypes in and out of its modules": [_modules(one, collapsed)] if found.trace.modules else [],
        "The same step in other graphs": [cut(each) for each in blocks.graphs(found, True)],
    }
    return Detail(
        name=one.name,
        said=f"{one.said} ({FAKE_SAID})" if one.fake else one.said,
        blocks=told,
        folded={title: members for title, members in folded.items() if members},
    )


def _modules(one: Traced, collapsed: bool) -> Block:
    table = blocks.module_table(one.found, collapsed=collapsed)
    shared = len(table.rows) < len(one.found.trace.modules)
    return cut(replace(table, note="modules that do the same share a row" if shared else ""))
