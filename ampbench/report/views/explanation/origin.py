"""Origin: where in a network the error of a low precision begins, module by module."""

from collections.abc import Mapping, Sequence
from typing import Any

from ampbench.base.units import UNDEFINED, counted, format_error
from ampbench.instruments.ranges import show
from ampbench.instruments.ranges.findings import origin_said
from ampbench.present.charts import CHOICES, ROWS_OF_THE_PAGE, Chart, Choice, Rows, tooltip
from ampbench.present.page import MODULE_ROWS, Detail, Part, Told, cut, told_part
from ampbench.records.kinds import ORIGIN
from ampbench.records.magnitudes import error_sentence
from ampbench.records.ranges import ModuleError, OriginPass, ProfileRow, layer_profile, ranked
from ampbench.report.explained import origins, untold
from ampbench.report.material import Material
from ampbench.report.views.explanation.headroom import modules_axis, shown_name, thinned
from ampbench.report.views.part import strange

OWN, INHERITED, TOTAL = "own", "inherited", "total"
OVERFLOWS, HANDED = "overflows", "inputs overflow"
_MARKS = {
    TOTAL: ("square", "--ink"),
    OWN: ("circle", "--link"),
    OVERFLOWS: ("triangle-up", "--regressed"),
    HANDED: ("triangle-down", "--inconclusive"),
}
"""Shape and colour of what is drawn."""

DRAWN_SAID = (
    "Own errors are those that a module makes of exact inputs; total ones are those of the whole run, inherited the "
    "part of these that came with its inputs (errors of different modules add in squares). A module that makes no "
    "error has no point."
)


def origin(material: Material) -> Part | None:
    """Return the cases the origin of whose errors was looked for, those that overflow or err most first."""
    found, missing = sorted(origins(material), key=_badness, reverse=True), untold(material, ORIGIN)
    if not (found or missing):
        return None
    charts, datasets, said = _charts(found)
    return told_part(
        found,
        missing,
        id="origin",
        title="Where errors begin",
        said=[*strange(material, ORIGIN, "Looked at"), *said],
        row=_row,
        detail=_detail,
        drawn=(charts, datasets),
    )


def _badness(one: Told[OriginPass]) -> tuple[int, float]:
    return sum(row.overflowed > 0 for row in one.found.modules), one.found.output_rel_l2 or 0.0


def _row(one: Told[OriginPass]) -> Mapping[str, Any]:
    """Return a case as a row of the table of all."""
    overflowing = sum(row.overflowed > 0 for row in one.found.modules)
    first = next(iter(ranked(one.found.modules)), None)
    return {
        "name": one.name,
        "numbers": [format_error(one.found.output_rel_l2), f"{len(one.found.modules):,}", f"{overflowing:,}"],
        "worst": error_sentence(first) if first else UNDEFINED,
    }


def _detail(one: Told[OriginPass]) -> Detail:
    first, *lines = (block for block in show.origin_section(one.case, one.found).blocks if not block.headers)
    return Detail(
        name=one.name,
        said=first.title,
        blocks=[*lines, *(cut(table, MODULE_ROWS) for table in show.errors(one.found))],
    )


def _charts(cases: Sequence[Told[OriginPass]]) -> tuple[list[Chart], dict[str, Rows], list[str]]:
    """Return the chart of all cases, its data, and what is to be said of how it is drawn."""
    rows: list[dict[str, Any]] = []
    choices: list[Choice] = []
    cut_short = False
    for one in cases[:CHOICES]:
        if len(rows) > ROWS_OF_THE_PAGE:
            break
        if not any(row.elements or row.total_rel_l2 is not None for row in one.found.modules):
            continue
        kept = _most_erring(one.found.modules)
        cut_short = cut_short or len(kept) < len(one.found.modules)
        names = {row.module for row in kept}
        own = [
            _drawn(str(one.number), each, row)
            for each, row in zip(layer_profile(one.found.modules), one.found.modules, strict=True)
            if row.module in names
        ]
        rows += own
        choices.append(Choice(value=str(one.number), label=one.name, alt=_alt(one), marks=_legended(own)))
    if not choices:
        return [], {}, []
    said = [DRAWN_SAID]
    if cut_short:
        said.append("Of networks with very many modules, those that err most by themselves are drawn.")
    if len(choices) < len(cases):
        said.append(f"The chart has {len(choices):,} of {len(cases):,} cases.")
    return [_chart(choices, rows)], {"explanation-origins": rows}, said


def _most_erring(modules: Sequence[ModuleError]) -> list[ModuleError]:
    """Return as many modules as a chart has room for, in their order: those that err most by themselves."""
    places = {row.module: place for place, row in enumerate(ranked(modules))}
    return thinned(modules, lambda row: -places.get(row.module, len(places)))


def _drawn(case: str, profile: ProfileRow, row: ModuleError) -> dict[str, Any]:
    """Return a module as a row of the chart."""
    mark = (HANDED if row.inputs_overflowed else OVERFLOWS) if row.overflowed else None
    return {
        "case": case,
        "module": shown_name(row.module),
        "place": profile.place,
        "class": row.kind,
        OWN: row.own_rel_l2 or None,
        INHERITED: profile.inherited if _is_certain(profile) else None,
        TOTAL: row.total_rel_l2 or None,
        "mark": mark,
        "own_text": format_error(row.own_rel_l2),
        "inherited_text": format_error(profile.inherited),
        "total_text": format_error(row.total_rel_l2),
        "overflow": f"{row.overflowed:,} of {row.elements:,}" if row.overflowed else "none",
        "note": row.note or None,
    }


def _is_certain(profile: ProfileRow) -> bool:
    """Return whether what is inherited is more than the difference of two errors that are nearly equal."""
    return profile.inherited is not None and profile.inherited > (profile.total or 0.0) / 10


def _alt(one: Told[OriginPass]) -> str:
    said = "; ".join(sentence.rstrip(".") for sentence in origin_said(one.found))
    return f"{one.name}, {counted(len(one.found.modules), 'module')}: {said}."


def _legended(rows: Rows) -> list[str]:
    """Return which marks are drawn of rows, as the legend lists them."""
    drawn = [name for name in (TOTAL, OWN) if any(row[name] for row in rows)]
    return drawn + [name for name in (OVERFLOWS, HANDED) if any(row["mark"] == name for row in rows)]


def _chart(choices: Sequence[Choice], rows: Rows) -> Chart:
    legended = _legended(rows)
    present = [*legended, *([INHERITED] if any(row[INHERITED] for row in rows) else [])]
    legend = {"title": None, "columns": 2}
    x = modules_axis(rows)
    colours = {"domain": legended, "range": [f"var({_MARKS[name][1]})" for name in legended]}
    shapes = {"domain": legended, "range": [_MARKS[name][0] for name in legended]}
    told = tooltip(
        module="module",
        **{"class": "kind"},
        own_text="own error",
        inherited_text="inherited",
        total_text="total",
        overflow="outputs that overflow",
        note="note",
    )
    y = {
        "field": "error",
        "type": "quantitative",
        "title": "relative L2 error against fp32 (log scale)",
        "scale": {"type": "log", "padding": 12, "nice": False},
        "axis": {"format": ".0e", "tickCount": 5, "minExtent": 40},
    }

    def marks(field: str) -> dict[str, Any]:
        channel = {"field": field, "type": "nominal", "legend": legend}
        return {"color": {**channel, "scale": colours}, "shape": {**channel, "scale": shapes}, "tooltip": told}

    def line(name: str, **style: Any) -> dict[str, Any]:
        return {
            "transform": [{"calculate": f"datum.{name}", "as": "error"}, {"filter": "isValid(datum.error)"}],
            "mark": {"type": "line", "color": "var(--ink)", **style},
            "encoding": {"x": x, "y": y},
        }

    folded = {"fold": [name for name in (TOTAL, OWN) if name in present], "as": ["series", "error"]}
    points = {
        "transform": [folded, {"filter": "isValid(datum.error)"}],
        "mark": {"type": "point", "size": 20, "opacity": 1},
        "encoding": {"x": x, "y": y, **marks("series")},
    }
    broken = {
        "transform": [{"filter": "isValid(datum.mark)"}],
        "mark": {"type": "point", "size": 70, "opacity": 1},
        "encoding": {"x": x, "y": {"value": 6}, **marks("mark")},
    }
    layers = [
        *([line(TOTAL, strokeWidth=1)] if TOTAL in present else []),
        *([line(INHERITED, strokeWidth=1.5, strokeDash=[4, 3])] if INHERITED in present else []),
        *([points] if folded["fold"] else []),
        *([broken] if any(row["mark"] for row in rows) else []),
    ]
    return Chart(
        id="explanation-origins",
        title="Errors by module",
        alt="The solid line is the total, the dashed one what is inherited, where that is over a tenth of the total.",
        spec={"layer": layers or [broken]},
        dataset="explanation-origins",
        height=320,
        choose="case",
        choices=choices,
    )
