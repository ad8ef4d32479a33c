"""The runs shown by machine, and the section of networks: a row each with what to take and why nothing faster is.

Where several machines measured, a row is of a network on a machine.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ampbench.core.units import counted
from ampbench.judge import notes
from ampbench.judge.machines import alike
from ampbench.judge.machines import networks as on_machines
from ampbench.judge.machines import told_apart as machines_apart
from ampbench.judge.verdict import across_tables
from ampbench.records.labels import device_statement, told_apart
from ampbench.report.material import Material, Shown
from ampbench.show.document import Block, Section, cut
from ampbench.show.networks import MANY, Network, brought, in_order, network_names, side_by_side, table_names, tables
from ampbench.show.networks import heading as counted_takes
from ampbench.show.page import Part, View, view_of_parts
from ampbench.show.rows import Group, Row, Take, grouped, precision_label
from ampbench.show.wording import answer, words
from ampbench.trend.building import place_of
from ampbench.trend.series import Place

AT_ONCE = 25
"""The number of rows of a table that are not folded."""
MOST = 1_000
"""The most rows of a table."""


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
    def advice(self) -> Take | None:
        """The advice for it, which is of the whole run: the row advised may not be among those shown."""
        return self.shown.advice.get(self.group)


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


def networks_of(machine: Machine) -> list[Network]:
    """Return what was measured of each network on a machine, in the order of `in_order`."""
    found: list[Network] = []
    for members in parts(machine).values():
        known = [(table, advice) for table in members if (advice := table.advice) is not None]
        labels = network_names([table.shown.stored.cases[table.rows[0]["case_id"]] for table, _ in known])
        names = told_apart(labels, (table.shown.name for table, _ in known))
        found += [
            Network(name=name, rows=table.whole, take=advice)
            for (table, advice), name in zip(known, names, strict=True)
        ]
    return in_order(found)


def across(machine: Machine) -> list[str]:
    """Return what is to be said of several tables of a machine together."""
    swept = dict.fromkeys(name for shown in machine.runs for name in shown.stored.header.selection.sweeps)
    takes = {table.group: table.advice for table in machine.tables if table.advice is not None}
    hints = (hint for shown in machine.runs for hint in across_tables(shown.stored, shown.advice))
    return [*map(words, hints), *map(words, notes.sweep_notes(takes, swept))]


def _machine(place: Place, runs: Sequence[Shown]) -> Machine:
    found = [
        (shown, group, members, whole[group])
        for shown in runs
        for whole in [grouped(shown.whole.values())]
        for group, members in grouped(row for row in shown.rows if row["device"] == place.device).items()
    ]
    labels = table_names(one.stored.cases[members[0]["case_id"]] for one, _, members, _ in found)
    names = told_apart(labels, (shown.name for shown, _, _, _ in found))
    environment = runs[-1].stored.header.environment
    described = environment.device(place.device)
    ran = {row["precision"] for _, _, members, _ in found for row in members if row["outcome"] == "ok"}
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
        statement=device_statement(described, environment, ran) if described is not None else "",
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


def parts(machine: Machine) -> dict[str, list[Table]]:
    """Return a machine's tables by phase and, where there are several, path: "training", "training · compiled"."""
    paths = {table.group.path for table in machine.tables}
    found: dict[str, list[Table]] = {}
    for table in machine.tables:
        part = f"{table.group.phase} · {table.group.path}" if len(paths) > 1 else table.group.phase
        found.setdefault(part, []).append(table)
    return found


def row_names(tables: Iterable[Table]) -> Callable[[Row], str]:
    """Return what calls the rows of `tables` by precision, with the dtype of the inputs where a table has several."""
    several: set[str] = set()
    for table in tables:
        inputs: dict[str, set[str]] = {}
        for row in table.whole:
            inputs.setdefault(precision_label(row), set()).add(row["input_dtype"])
        several |= {label for label, dtypes in inputs.items() if len(dtypes) > 1}

    def name(row: Row) -> str:
        label = precision_label(row)
        return f"{label} in-{row['input_dtype']}" if label in several else label

    return name


def heading(machines: Sequence[Machine]) -> str:
    """Return in one line which precision to take on these machines."""
    answer = counted_takes([network for machine in machines for network in networks_of(machine)])
    if len(machines) == 1:
        return f"on {machines[0].name}: {answer}"
    torches = {machine.runs[-1].stored.header.environment.torch_version for machine in machines}
    return f"on {len(machines)} {'devices' if len(torches) == 1 else 'devices or torch versions'}: {answer}"


def networks(material: Material) -> View | None:
    """Return the view; None where nothing was measured."""
    parts = [_part(str(place), section) for place, section in enumerate(network_sections(material))]
    return view_of_parts("networks", "Networks", parts)


def network_sections(material: Material) -> list[Section]:
    """Return what to take of each network and what precisions brought, of machines side by side; [] of nothing."""
    machines = advised_machines(material)
    together = _side_by_side(material) if machines else []
    several = len(machines) > 1
    return [*together, *(_of_machine(machine, titled=several, tabled=not together) for machine in machines)]


def _part(id: str, section: Section) -> Part:
    return Part(id=id, title=section.title, blocks=[part for block in section.blocks for part in _folding(block)])


def _folding(block: Block) -> list[Block]:
    """Return a table as its first rows and, folded away, the others as far as a page has room."""
    first, rest = block.rows[:AT_ONCE], cut(replace(block, rows=block.rows[AT_ONCE:]), MOST)
    return [
        replace(block, rows=first),
        *([replace(rest, title=f"{len(block.rows) - AT_ONCE:,} more", folded=True)] if rest.rows else []),
    ]


def _of_machine(machine: Machine, *, titled: bool, tabled: bool) -> Section:
    """Return the blocks of a machine: its networks, unless another section has them, and the gains of precisions."""
    own = networks_of(machine)
    blocks = [*(tables(own) if tabled else []), brought(own)]
    if len(own) <= MANY:
        blocks.append(
            Block(
                "why, in sentences",
                ["network", "why"],
                [(each.label, _why(each)) for each in machine.advised],
                folded=True,
            )
        )
    said = [*([machine.statement] if titled and machine.statement else []), *across(machine)]
    return Section(machine.title if titled else "", [*(block for block in blocks if block.rows), *map(Block, said)])


def _why(table: Table) -> str:
    """Return in words what to take of a table, why, and what helps."""
    advice = table.advice
    return "; ".join([answer(advice.statement), *map(words, advice.hints)]) if advice else ""


def _side_by_side(material: Material) -> list[Section]:
    """Return the sections of machines, none where one machine measured all."""
    shown = [each for each in material.shown if each.rows]
    if len({_place(each) for each in shown}) < 2:
        return []
    found = machines_apart([(each.stored, each.rows, each.advice) for each in shown])
    rows = [row for machine in found for row in machine.rows]
    own = on_machines(found)
    places = [machine.place for machine in found]
    return list(side_by_side(places, own, rows, alike(found)).sections())


def _place(shown: Shown) -> tuple[object, ...]:
    """Return what makes a machine another one: versions of torch on one are a matter of trends."""
    environment = shown.stored.header.environment
    devices = tuple(sorted({case.device for case in shown.stored.cases.values()}))
    return environment.host, environment.cpu, environment.threads, devices
