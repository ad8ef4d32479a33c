"""What of a case is followed, by the names people type, and how a change of it is told from none."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ampbench.errors import UnknownNameError
from ampbench.metrics import COMPARED, DRIFT, GATED, METRICS, Column, Gate

TIME = "seconds_median"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """A metric that is followed: its short `name`, its `column`, and the `gate` that comparisons have for it.

    `scale` is the smallest number that a change is related to: a tenth of an error below what rounding to the dtype
    costs is none. `noisy` metrics are times, whose values are luck too; all others are the same in every run of one
    environment.
    """

    name: str
    column: Column
    gate: Gate
    scale: float = 0.0
    noisy: bool = False


TRACKED: Mapping[str, Tracked] = MappingProxyType(
    {
        one.name: one
        for one in (
            Tracked(name="time", column=METRICS[TIME], gate=GATED[TIME], noisy=True),
            Tracked(name="throughput", column=METRICS["items_per_second"], gate=GATED[TIME], noisy=True),
            Tracked(name="memory", column=METRICS["peak_memory_bytes"], gate=GATED["peak_memory_bytes"]),
            # the table's ×floor: the error of rounding alone is 1 here, and all programs tell this one
            Tracked(name="floor", column=METRICS["output_floor_ratio"], gate=GATED["output_rel_l2"], scale=1.0),
            Tracked(name="gradients", column=METRICS["grad_rel_l2"], gate=GATED["grad_rel_l2"]),
            Tracked(name="parameters", column=METRICS["param_rel_l2"], gate=GATED["param_rel_l2"]),
            Tracked(name="updates", column=METRICS["update_rel_l2"], gate=GATED["update_rel_l2"]),
            Tracked(name="nonfinite", column=METRICS["output_nonfinite"], gate=GATED["output_nonfinite"], scale=1.0),
            Tracked(
                name="flushed",
                column=METRICS["grad_flushed_share"],
                gate=GATED["grad_flushed_share"],
                scale=GATED["grad_flushed_share"].floor,
            ),
            # from the first x that has one: two runs have it together, and neither alone
            Tracked(name="reference", column=COMPARED[DRIFT], gate=GATED[DRIFT]),
        )
    }
)
"""The metrics that `ampbench trend` follows."""

DEFAULT = ("time", "memory", "floor", "gradients")


def tracked(names: Iterable[str] = ()) -> list[Tracked]:
    """Return the metrics called `names`, short or as their columns are; without any, the usual four.

    Raises `UnknownNameError` with the nearest names for any other.
    """
    by_name = {**TRACKED, **{one.column.name: one for one in TRACKED.values()}}
    chosen = list(dict.fromkeys(names)) or list(DEFAULT)
    for name in chosen:
        if name not in by_name:
            raise UnknownNameError("metric", name, TRACKED)
    return list(dict.fromkeys(by_name[name] for name in chosen))
