"""Keep-fp32: which modules searches found to keep in fp32, what that costs, and the code to paste."""

from collections.abc import Mapping, Sequence
from typing import Any

from ampbench.beside import ratio_said
from ampbench.blocks import as_sentence
from ampbench.errors import UnknownNameError
from ampbench.keeping import blocks
from ampbench.keeping.code import code
from ampbench.keeping.weighing import kept_said, points, said
from ampbench.records.keeping import KeepSearch, SearchSpace
from ampbench.records.runs import KEEP_FP32
from ampbench.report.explained import Told, Untold, searches, untold
from ampbench.report.material import Material
from ampbench.report.views.explanation.weighed import Searched, weighed_charts
from ampbench.report.views.part import Detail, Part, cut, strange, told_part
from ampbench.units import UNDEFINED, counted, format_error


def keeping(material: Material) -> Part | None:
    """Return the searches for modules to keep in fp32, those first that found modules, those last that need none."""
    told, missing = searches(material), untold(material, KEEP_FP32)
    if not (told or missing):
        return None
    found: list[Searched] = []
    for one in sorted(told, key=_telling):
        try:
            found.append(_searched(one))
        except UnknownNameError as error:  # a file put together by other means than a search
            missing.append(Untold(name=one.name, reason=_misfit(error)))
    charts, datasets, drawn = weighed_charts(found)
    return told_part(
        found,
        missing,
        id="keep-fp32",
        title="What to keep in fp32",
        said=[*_said(found), *strange(material, KEEP_FP32, "Searched"), *drawn],
        row=_row,
        detail=_detail,
        drawn=(charts, datasets),
    )


def _telling(one: Told[KeepSearch]) -> tuple[bool, bool, int]:
    found = one.found.found
    return not found, found is not None, -one.found.units


def found_said(one: Told[KeepSearch]) -> list[str]:
    """Return in sentences what a search found, whether that is proven and what it costs, or that it fits no space."""
    try:
        return said(one.found, _space(one), one.run.trials.get(one.case.case_id, []))
    except UnknownNameError as error:
        return [_misfit(error)]


def _misfit(error: UnknownNameError) -> str:
    return f"its modules are not those that it chose from: {error}"


def _searched(one: Told[KeepSearch]) -> Searched:
    """Return a search with what it saw; raises `UnknownNameError` where these do not fit together."""
    space, trials = _space(one), one.run.trials.get(one.case.case_id, [])
    return Searched(
        number=one.number,
        name=one.name,
        case=one.case,
        search=one.found,
        space=space,
        trials=trials,
        points=points(one.found, space, trials),
    )


def _space(one: Told[KeepSearch]) -> SearchSpace:
    case_id = one.case.case_id
    return one.run.spaces.get(case_id) or SearchSpace(case_id=case_id, units=[])


def _said(found: Sequence[Searched]) -> list[str]:
    """Return how many of several searches found something; of one, its own sentences say it."""
    if len(found) < 2:
        return []
    met = sum(one.search.found is not None for one in found)
    return [f"Of {counted(len(found), 'search', 'searches')}, {met or 'none'} found modules that meet the budget."]


def _row(one: Searched) -> Mapping[str, Any]:
    """Return a search as a row of the table of all."""
    search = one.search
    point = next((point for point in one.points if point.found), None)
    trial = next((trial for trial in one.trials if search.found is not None and trial.kept == search.found), None)
    cost = ratio_said(point.against_low) if point is not None and point.against_low is not None else UNDEFINED
    return {
        "name": one.name,
        "kept": "no set meets the budget" if search.found is None else kept_said(search.found),
        "numbers": [
            UNDEFINED if search.found is None else f"{search.units:,} of {len(one.space.units):,}",
            format_error(search.max_error),
            format_error(trial.output_rel_l2 if trial else None),
            f"{search.trials:,}",
        ],
        "cost": cost,
    }


def _detail(one: Searched) -> Detail:
    first, *_ = said(one.search, one.space, one.trials)
    section = blocks.section(one.case, one.search, one.space, one.trials, everything=True)
    return Detail(
        name=one.name,
        said=as_sentence(first),
        blocks=[cut(block) for block in section.blocks[1:]],
        code=code(one.search, one.case),
    )
