"""What a run of checks says: by device what is defective, what differs by design, and what could not be shown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ampbench.core.units import counted
from ampbench.defects.catalogue import CHECKS
from ampbench.defects.check import Check
from ampbench.instruments.check.findings import WORST, CheckChange, changes, check_of, latest, place_of, sentences
from ampbench.instruments.check.records import (
    DEFECTIVE,
    DIFFERS,
    GOOD,
    NOT_SHOWN,
    Checked,
    ChecksAsked,
)
from ampbench.records.rules import DEVICE
from ampbench.show.data import record_data
from ampbench.show.document import Block, Column, Document, Section, as_sentence, picked, records, table
from ampbench.show.page import Held, Part, told_part
from ampbench.store import StoredRun

COLUMNS: Sequence[Column[Checked]] = (
    Column("check", lambda one: one.check, "check", whole=True),
    Column("device", lambda one: one.device),
    Column("area", lambda one: check_of(one).area, "area"),
    Column("outcome", lambda one: one.outcome, "outcome", whole=True),
    Column("title", lambda one: check_of(one).title, "what is wrong"),
    Column("expected", lambda one: one.expected, "expected"),
    Column("seen", lambda one: one.seen, "seen"),
    Column("remedy", lambda one: check_of(one).remedy, "what to do"),
    Column("mended", lambda one: check_of(one).mended, "mended in", said=lambda one: check_of(one).mended, rare=True),
    Column("matters", lambda one: ", ".join(check_of(one).matters)),
    Column("why", lambda one: one.why, "why"),
    Column("how", lambda one: one.how),
    Column("threads", lambda one: ", ".join(check_of(one).threads)),
    Column("said", lambda one: "; ".join(one.said)),
    Column("warned", lambda one: "; ".join(one.warned)),
    Column("seconds", lambda one: one.seconds),
    Column("program", lambda one: one.program),
)
"""Of a check on a device: what it came to, what was expected and seen, and what to do."""

_TABLES = {
    DEFECTIVE: ("Defects", ("check", "title", "remedy", "mended")),
    DIFFERS: ("By design, but not what one may expect", ("check", "title", "remedy")),
    NOT_SHOWN: ("Not shown here", ("check", "why")),
    GOOD: ("As it should be", ("check", "expected")),
}


def document(
    stored: StoredRun,
    case_ids: Sequence[str],  # noqa: ARG001 - as all documents
    *,
    everything: bool = False,
) -> Document:
    """Return what a run of checks says, a flat row for each check on each device.

    `everything`: all that is known of each, as of those that were asked for by name.
    """
    found = stored.every(Checked)
    asked = stored.asked
    in_full = everything or (isinstance(asked, ChecksAsked) and bool(asked.checks))
    version = stored.header.environment.torch_version
    return Document(
        sections=lambda: sections(version, found, in_full=in_full, named=stored.header.selection.devices),
        data=lambda: _data(stored),
        columns=[column.key for column in COLUMNS],
        rows=lambda: records(COLUMNS, found),
    )


def sections(
    version: str, found: Sequence[Checked], *, in_full: bool = False, named: Sequence[str] = ()
) -> list[Section]:
    """Return a section for each device: tables of what is not good, or each check `in_full`, then what they come to.

    Of a device that is not here, beside one that is, only the latter, unless it is one of those `named`.
    """
    told = []
    here = {one.device for one in found if one.how == DEVICE}
    for device in dict.fromkeys(one.device for one in found):
        own = [one for one in found if one.device == device]
        brief = bool(here) and device not in here and device not in named and not in_full
        if brief:
            blocks = []
        elif in_full:
            blocks = [_in_full(one) for outcome in WORST for one in own if one.outcome == outcome]
        else:
            blocks = [block for outcome in WORST if outcome != GOOD and (block := table_of(outcome, own)) is not None]
        good = sum(one.outcome == GOOD for one in own)
        if good and not in_full and not brief:
            blocks.append(Block(as_sentence(f"{counted(good, 'check')} found all as it should be")))
            blocks.append(Block("`--all` has what each saw, why that is right or wrong, and where it was told of."))
        place = place_of(version, device, own)
        blocks += [Block(as_sentence(line)) for line in sentences(place, own)]
        if brief:
            blocks.append(Block(f"`ampbench check --device {device}` has what is wrong there and what to do."))
        told.append(Section(place, blocks))
    return told


def table_of(outcome: str, found: Sequence[Checked]) -> Block | None:
    """Return a table of those that came to this; None where none did."""
    own = [one for one in found if one.outcome == outcome]
    title, keys = _TABLES[outcome]
    return table(title, picked(COLUMNS, *keys), own) if own else None


def _in_full(found: Checked) -> Block:
    """Return all that is known of a check on a device."""
    check = check_of(found)
    told = {
        "expected": found.expected,
        "seen": found.seen,
        "not shown": found.why,
        "also printed": "; ".join(found.said),
        "warned": "; ".join(found.warned),
        "because": check.why,
        "what to do": check.remedy if found.outcome != GOOD else "",
        "mended in": f"torch {check.mended}" if check.mended else "",
        "told of in": ", ".join(check.threads),
    }
    rows = [(what, said) for what, said in told.items() if said]
    return Block(f"{found.check} ({found.outcome}): {check.title}", ("", "what there is to say"), rows, whole=("",))


CHANGES: Sequence[Column[CheckChange]] = (
    Column("check", lambda one: one.after.check, "check", whole=True),
    Column("device", lambda one: one.after.device, "device"),
    Column("title", lambda one: check_of(one.after).title, "what is wrong"),
    Column("before", lambda one: one.before.outcome, "before"),
    Column("after", lambda one: one.after.outcome, "after"),
    Column("seen_before", lambda one: one.before.seen, "seen before"),
    Column("seen_after", lambda one: one.after.seen, "seen after"),
    Column("remedy", lambda one: check_of(one.after).remedy, "what to do"),
)
"""Of a check that came to something else: what it looks for, and what both runs say."""


def changes_document(before: StoredRun, after: StoredRun) -> Document:
    """Return which defects came and went from one run of checks to another."""
    changed, both = changes([before], [after]), latest([before]).keys() & latest([after]).keys()
    versions = [one.header.environment.torch_version for one in (before, after)]
    others = [one for one in changed if not (one.came or one.went)]
    tables = {
        "Came": (("check", "device", "title", "remedy"), [one for one in changed if one.came]),
        "Went": (("check", "device", "title"), [one for one in changed if one.went]),
        "Otherwise": (("check", "device", "before", "after", "seen_before", "seen_after"), others),
    }
    counts = [f"{len(own):,} {title.lower()}" for title, (_, own) in tables.items()]
    said = f"of {counted(len(both), 'check')} in both runs {', '.join(counts)}"
    return Document(
        sections=lambda: [
            Section(
                f"From torch {versions[0]} to {versions[1]}",
                [
                    *(table(title, picked(CHANGES, *keys), own) for title, (keys, own) in tables.items() if own),
                    Block(as_sentence(said)),
                ],
            )
        ],
        data=lambda: {"before": before.header.run, "after": after.header.run, "changes": records(CHANGES, changed)},
        columns=[column.key for column in CHANGES],
        rows=lambda: records(CHANGES, changed),
    )


def _data(stored: StoredRun) -> dict[str, Any]:
    version, found = stored.header.environment.torch_version, stored.every(Checked)
    by_device = {one.device: [each for each in found if each.device == one.device] for one in found}
    return {
        "run": stored.header.run,
        "torch": version,
        "ended": stored.ending,
        "sentences": {device: sentences(place_of(version, device, own), own) for device, own in by_device.items()},
        "checks": [record_data(one) | {"title": check_of(one).title, "remedy": check_of(one).remedy} for one in found],
    }


LISTED: Sequence[Column[Check]] = (
    Column("check", lambda one: one.name, "check", whole=True),
    Column("area", lambda one: one.area, "area"),
    Column("title", lambda one: one.title, "what is wrong"),
    Column("threads", lambda one: ", ".join(one.threads), "told of in"),
    Column("devices", lambda one: ", ".join(one.devices)),
    Column("matters", lambda one: ", ".join(one.matters)),
    Column("why", lambda one: one.why),
    Column("remedy", lambda one: one.remedy),
    Column("mended", lambda one: one.mended),
    Column("slow", lambda one: one.slow),
)
"""Of a check: what it looks for, and where that was told of."""


def catalogue() -> Document:
    """Return the checks that there are."""
    checks = list(CHECKS.values())
    areas = list(dict.fromkeys(one.area for one in checks))
    return Document(
        sections=lambda: [
            Section(area, [table("", LISTED, [one for one in checks if one.area == area])]) for area in areas
        ],
        data=lambda: records(LISTED, checks),
        columns=[column.key for column in LISTED],
        rows=lambda: records(LISTED, checks),
    )


@dataclass(frozen=True, slots=True)
class _Torch:
    """What was found on a device with a torch."""

    version: str
    device: str
    found: list[Checked]

    @property
    def name(self) -> str:
        return f"torch {self.version} on {self.device}"


def part(held: Held[Any]) -> Part | None:
    """Return what the checks of the runs on the page came to, by torch and device."""
    return told_part(
        held,
        _torches(held.runs),
        _section,
        id="checks",
        title="Known defects",
        caption="Known defects of mixed precision, by torch and device",
        first="torch",
        folding=["As it should be"],
        finding=lambda one: next(iter(sentences("it", one.found)), ""),
        what="devices",
    )


def _torches(runs: Iterable[StoredRun]) -> list[_Torch]:
    """Return what runs found, the newest run of each torch and device."""
    by_torch: dict[tuple[str, str], list[Checked]] = {}
    for run in runs:
        version, newest = run.header.environment.torch_version, latest([run])
        for device in dict.fromkeys(device for device, _ in newest):
            by_torch[version, device] = [one for (where, _), one in newest.items() if where == device]
    return [_Torch(version, device, found) for (version, device), found in by_torch.items()]


def _section(one: _Torch) -> Section:
    (told,) = sections(one.version, one.found)
    good = table_of(GOOD, one.found)
    folded = [replace(good, title="As it should be")] if good is not None else []
    said = [Block(as_sentence(line)) for line in sentences("it", one.found)]
    return Section(one.name, [*said, *(block for block in told.blocks if block.headers), *folded])
