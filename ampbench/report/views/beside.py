"""Machines side by side: of each network what to take where, and where it is best."""

from ampbench.judge.beside import placed, sections, told_apart, unadvised
from ampbench.present.page import View, cut
from ampbench.report.material import Material, Shown

MOST = 400
"""A table shows so many rows at most; the rest is in `ampbench show --format csv`."""


def beside(material: Material) -> View | None:
    """Return the view; None unless several machines measured something."""
    shown = [one for one in material.shown if one.rows]
    if len({_place(one) for one in shown}) < 2:
        return None
    found = told_apart([(one.stored, one.rows, one.advice) for one in shown])
    rows = placed(found)
    told = sections(found, [one for one in rows if one.taken], unadvised(rows), found[0].name)
    return View(
        id="machines",
        title="Machines side by side",
        template="beside.html",
        content={
            "told": [{"title": one.title, "blocks": [cut(block, MOST) for block in one.blocks]} for one in told],
            "named": ("precision",),
        },
    )


def _place(shown: Shown) -> tuple[object, ...]:
    """Return what makes a machine another one: versions of torch on one are a matter of trends."""
    environment = shown.stored.header.environment
    devices = tuple(sorted({case.device for case in shown.stored.cases.values()}))
    return environment.host, environment.cpu, environment.threads, devices
