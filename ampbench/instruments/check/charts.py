"""Which known defects each torch has on each device, on the page."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ampbench.instruments.check.findings import latest, sentences
from ampbench.instruments.check.records import GOOD, Checked
from ampbench.instruments.check.show import sections, table_of
from ampbench.present.document import Block, Section, as_sentence
from ampbench.present.page import Held, Part, told_part
from ampbench.store import StoredRun


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
