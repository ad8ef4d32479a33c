"""Which known defects each torch has on each device, on the page."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ampbench.instruments.check.findings import latest, sentences
from ampbench.instruments.check.records import DEFECTIVE, DIFFERS, GOOD, Checked
from ampbench.instruments.check.show import sections, table_of
from ampbench.present.document import as_sentence
from ampbench.present.page import Detail, Held, Overview, Part, sentences_of, told_part
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
    each = _torches(held.runs)
    if not each:
        return None
    counts = [
        [str(sum(found.outcome == one for found in torch.found)) for one in (DEFECTIVE, DIFFERS, GOOD)]
        for torch in each
    ]
    return told_part(
        each,
        id="checks",
        title="Known defects",
        said=[],
        detail=_detail,
        sentences=lambda one: sentences_of(sections(one.version, one.found)[0]),
        finding=lambda one: next(iter(sentences("it", one.found)), ""),
        overview=Overview(
            caption="Known defects of mixed precision, by torch and device",
            headers=[DEFECTIVE, DIFFERS, GOOD],
            rows=[(one.name, cells) for one, cells in zip(each, counts, strict=True)],
            first="torch",
            numbers={DEFECTIVE, DIFFERS, GOOD},
        ),
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


def _detail(one: _Torch) -> Detail:
    (told,) = sections(one.version, one.found)
    folded = table_of(GOOD, one.found)
    said = " ".join(map(as_sentence, sentences("it", one.found)))
    return Detail(
        name=one.name,
        said=said,
        blocks=[block for block in told.blocks if block.headers],
        folded={"As it should be": [folded]} if folded is not None else {},
    )
