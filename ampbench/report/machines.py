"""The runs shown by machine: its tables with their advice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ampbench import notes
from ampbench.advice import Advice
from ampbench.labels import case_labels, told_apart
from ampbench.records.cases import Case
from ampbench.report.material import Material, Shown
from ampbench.rows import Group, Row, grouped
from ampbench.trends import Place, place_of
from ampbench.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What was measured in several precisions to be compared: the `rows` of a group, and the advice for it.

    `label` tells it from the other tables of its machine. `shown` is the run that measured it, and `whole` all rows
    that this has of the group.
    """

    group: Group
    label: str
    rows: Sequence[Row]
    whole: Sequence[Row]
    shown: Shown

    @property
    def advice(self) -> Advice | None:
        """The advice for it, which is of the whole run: the row advised may not be among those shown."""
        return self.shown.advice.get(self.group)

    @property
    def chosen(self) -> Row | None:
        """The row that is advised, of all rows of the run; None without advice."""
        wanted = self.advice.case_id if self.advice else None
        return None if wanted is None else self.shown.whole[wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A device of a machine with one torch: what numbers on the page can be put together.

    `name` is that of the device in a sentence ("this CPU (AMD EPYC)"), `title` tells it from other machines,
    `statement` says how it computes.
    """

    name: str
    title: str
    statement: str
    runs: Sequence[Shown]
    tables: Sequence[Table]

    @property
    def advised(self) -> list[Table]:
        """The tables for which there is advice: those in which anything was measured."""
        return [table for table in self.tables if table.advice is not None]


@lru_cache(maxsize=1)
def machines(material: Material) -> list[Machine]:
    """Return the machines of the runs shown, in order of appearance."""
    runs: dict[Place, list[Shown]] = {}
    for shown in material.shown:
        for device in dict.fromkeys(row["device"] for row in shown.rows):
            runs.setdefault(place_of(shown.stored.header, device, "commit"), []).append(shown)
    return [_machine(place, members) for place, members in runs.items()]


def advised_machines(material: Material) -> list[Machine]:
    """Return the machines on which anything was measured."""
    return [machine for machine in machines(material) if machine.advised]


def table_labels(rows: Sequence[Row], cases: Sequence[Mapping[str, Case]]) -> list[str]:
    """Return the short names of the tables that `rows` are of: those of their cases but for the precision."""
    neutral = [
        replace(members[row["case_id"]], precision="", input_dtype="", scaler=True)
        for row, members in zip(rows, cases, strict=True)
    ]
    labels = case_labels(neutral)
    return [" ".join(labels[case.case_id].split()) for case in neutral]


def _machine(place: Place, runs: Sequence[Shown]) -> Machine:
    found = [
        (shown, group, members, whole[group])
        for shown in runs
        for whole in [grouped(shown.whole.values())]
        for group, members in grouped(row for row in shown.rows if row["device"] == place.device).items()
    ]
    labels = table_labels([members[0] for _, _, members, _ in found], [one.stored.cases for one, _, _, _ in found])
    names = told_apart(labels, (shown.name for shown, _, _, _ in found))
    environment = runs[-1].stored.header.environment
    described = environment.device(place.device)
    model = place.device_name or (place.cpu if place.device == "cpu" else "")
    kind = "this CPU" if place.device == "cpu" else f"this {place.device.upper()} device"
    told = (
        model or place.device,
        place.device if model else "",
        f"host {place.host}" if place.host else "",
        counted(place.threads, "thread") if place.threads else "",
        f"torch {place.torch_version}" if place.torch_version else "",
        " ".join(f"{name}={value}" for name, value in place.settings),
        f"imported from {place.program}" if runs[-1].stored.header.imported else "",
    )
    return Machine(
        name=f"{kind} ({model})" if model else kind,
        title=" · ".join(part for part in told if part),
        statement=notes.device_statement(described, environment) if described is not None else "",
        runs=runs,
        tables=[
            Table(
                group=group,
                label=name,
                rows=members,
                whole=whole,
                shown=shown,
            )
            for (shown, group, members, whole), name in zip(found, names, strict=True)
        ],
    )
