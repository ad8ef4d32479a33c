"""The section of many networks, or of several machines: a row each, with what to take and why nothing faster is."""

from ampbench.judge.machines import alike, told_apart
from ampbench.judge.machines import networks as on_machines
from ampbench.report.answers import advised_machines
from ampbench.report.answers import networks as on_machine
from ampbench.report.material import Material, Shown
from ampbench.show.document import Section
from ampbench.show.networks import missing, side_by_side, tables
from ampbench.show.page import View, cut

AT_ONCE = 25
"""So many rows of a table are shown; the others are folded away."""
MOST = 1_000
"""So many rows a table has at most."""


def networks(material: Material) -> View | None:
    """Return the view; None unless several machines measured something, or one of them many networks."""
    sections = _of_machines(material) or _of_many(material)
    if not sections:
        return None
    return View(
        id="networks",
        title="Networks",
        template="networks.html",
        content={
            "sections": [(each.title, [cut(one, MOST) for one in each.blocks]) for each in sections],
            "at_once": AT_ONCE,
            "named": ("take", "precision"),
        },
    )


def _of_machines(material: Material) -> list[Section]:
    shown = [one for one in material.shown if one.rows]
    if len({_place(one) for one in shown}) < 2:
        return []
    found = told_apart([(one.stored, one.rows, one.advice) for one in shown])
    rows = [row for machine in found for row in machine.rows]
    return list(side_by_side([one.place for one in found], on_machines(found), rows, alike(found)).sections())


def _of_many(material: Material) -> list[Section]:
    machines = advised_machines(material)
    return [
        Section(
            machine.title if len(machines) > 1 else "",
            [*tables(on_machine(machine)), missing(row for table in machine.tables for row in table.rows)],
        )
        for machine in machines
        if machine.is_ranked
    ]


def _place(shown: Shown) -> tuple[object, ...]:
    """Return what makes a machine another one: versions of torch on one are a matter of trends."""
    environment = shown.stored.header.environment
    devices = tuple(sorted({case.device for case in shown.stored.cases.values()}))
    return environment.host, environment.cpu, environment.threads, devices
