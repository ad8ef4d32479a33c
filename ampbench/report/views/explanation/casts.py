"""Casts: what autocast and others cast in a step, what that costs, and what could be saved of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ampbench.blocks import Block
from ampbench.casts import blocks
from ampbench.casts.tables import module_groups
from ampbench.records.casts import CheckedSaving
from ampbench.report.explained import Traced, changed, strangers, traced, untraced
from ampbench.report.material import Material
from ampbench.report.views.explanation.part import LISTED, Part
from ampbench.report.views.explanation.timeline import timelines
from ampbench.units import UNDEFINED, counted, format_bytes, format_seconds, format_share

DETAILED = 20
"""So many cases, the worst, are told of one by one; the table has more."""
ROWS = 40
"""So many rows does a table of one case have, those that say most."""
FEW_MODULES = 12
"""In a network of more modules, those that do the same to dtypes share a row."""
NAMED = 3
"""So many of the modules that share a row are named."""
FAKE_SAID = "fake tensors, not on hardware"


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What is told of one case: its casts in a line, what to say and show of it, and what is folded, by title."""

    name: str
    said: str
    blocks: Sequence[Block]
    folded: Mapping[str, Sequence[Block]]


def casts(material: Material) -> Part | None:
    """Return the traced cases, those first whose casts take the most time or, untimed, move the most bytes."""
    found, missing, differing = traced(material), untraced(material), changed(material)
    if not (found or missing or differing):
        return None
    charts, datasets, said = timelines(found)
    listed = found[:LISTED]
    return Part(
        id="casts",
        title="Casts",
        said=[*_said(found), *_strange(material), *said],
        content={
            "rows": [_row(one) for one in listed] if len(found) > 1 else [],
            "cases": [_detail(one) for one in found[:DETAILED]],
            "undetailed": max(len(listed) - DETAILED, 0),
            "numbers": blocks.NUMBERS,
            "untraced": missing[:LISTED],
            "changed": differing[:LISTED],
        },
        left_out=sum(max(len(each) - LISTED, 0) for each in (found, missing, differing)),
        charts=charts,
        datasets=datasets,
    )


def casts_said(one: Traced) -> str:
    """Return what the casts of a case cost and, where it was tried, what a change saves."""
    where = f" ({FAKE_SAID})" if one.fake else ""
    tried = [f"{each.change}: {checked_said(each)}" for each in one.found.checked]
    return "; ".join([f"{one.said}{where}", *tried])


def checked_said(one: CheckedSaving) -> str:
    """Return what came of a change that was made and measured."""
    casts = f"{counted(one.casts, 'cast')} a step fewer"
    saved = one.seconds_before - one.seconds_after
    if one.saved_low is None or one.saved_high is None:
        return f"{casts}, {_duration(saved)} saved, from too few samples for an interval"
    ends = f"95 % {_duration(one.saved_low)} to {_duration(one.saved_high)}"
    if one.saved_low > 0:
        return f"{casts}, {_duration(saved)} saved ({ends})"
    return f"{casts}, but {'the step takes longer' if one.saved_high < 0 else 'no certain saving of time'} ({ends})"


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
    if certain := [(one, each) for one in found for each in one.found.checked if (each.saved_low or 0.0) > 0]:
        one, best = max(certain, key=lambda each: each[1].seconds_before / each[1].seconds_after)
        said.append(f"Measured: {best.change} in {one.name}: {checked_said(best)}.")
    return said


def _strange(material: Material) -> list[str]:
    found = strangers(material)
    return [f"Traced with {'; '.join(found)}, which measured nothing on this page."] if found else []


def _row(one: Traced) -> Mapping[str, Any]:
    """Return a case as a row of the table of all."""
    whole = one.whole
    saved = sum(len(saving.casts) for saving in one.savings)
    best = max(one.found.checked, key=lambda each: each.seconds_before - each.seconds_after, default=None)
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
    told = [*blocks.headline(found)[1:], *(Block(note) for note in found.notes)]
    for make in (blocks.origins, blocks.weights_used, blocks.saved, blocks.ops_that_cast):
        told += [_cut(each) for each in make(found, True)]
    collapsed = len(found.trace.modules) > FEW_MODULES
    folded = {
        "Dtypes in and out of its modules": [_modules(one, collapsed)] if found.trace.modules else [],
        "The same step in other graphs": [_cut(each) for each in blocks.graphs(found, True)],
    }
    return Detail(
        name=one.name,
        said=f"{one.said} ({FAKE_SAID})" if one.fake else one.said,
        blocks=told,
        folded={title: members for title, members in folded.items() if members},
    )


def _modules(one: Traced, collapsed: bool) -> Block:
    groups = module_groups(one.found.trace, collapsed=collapsed)
    rows = [
        [
            _named([module or "the model itself" for module in group.modules]),
            group.kind,
            *(", ".join(side) or UNDEFINED for side in (group.inputs, group.outputs, group.parameters)),
            f"{group.calls:,}",
            f"{group.casts:,}",
            format_bytes(group.cast_bytes) if group.casts else UNDEFINED,
        ]
        for group in groups
    ]
    note = "modules that do the same share a row" if len(groups) < len(one.found.trace.modules) else ""
    headers = ["module", "kind", "in", "out", "parameters", "calls", "casts", "moved"]
    return _cut(Block("Dtypes in and out of modules", headers, rows, note))


def _named(modules: Sequence[str]) -> str:
    more = f" and {len(modules) - NAMED:,} more" if len(modules) > NAMED else ""
    return ", ".join(modules[:NAMED]) + more


def _cut(block: Block) -> Block:
    """Return a block with so many rows as a page has room for, and in its note how many there are."""
    if len(block.rows) <= ROWS:
        return block
    note = f"{ROWS} of {len(block.rows):,}"
    return replace(block, rows=block.rows[:ROWS], note="; ".join(part for part in (block.note, note) if part))


def _duration(seconds: float) -> str:
    """Return seconds that may be fewer than none with a true minus."""
    return f"−{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)
