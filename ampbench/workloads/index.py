"""The built-in workloads by name, without torch: what they are, what can be set, how large each preset makes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.cases import ParameterValue, WorkloadSource

PRESETS = ("tiny", "small", "large")
FAMILIES = ("conv", "linear", "sequence", "heads", "vision")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """One built-in workload: `tiny`, `small` and `large` give every parameter's value, the batch size among them.

    `function` in `ampbench.workloads.<family>` builds it. `needs_torchvision`: without it, the workload is skipped.
    `images`: its inputs are images, so that the channels-last memory format applies. `choices` limit parameters that
    are not free. `suite` lists the phases the default suite measures it in (none: only when asked for).
    """

    name: str
    family: str
    summary: str
    tiny: Mapping[str, ParameterValue]
    small: Mapping[str, ParameterValue]
    large: Mapping[str, ParameterValue]
    version: int = 1
    needs_torchvision: bool = False
    images: bool = False
    multiples: Mapping[str, str] = field(default_factory=dict)
    suite: tuple[str, ...] = ()
