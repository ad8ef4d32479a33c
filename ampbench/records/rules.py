"""Records of autocast's rule for each op: documented, registered and observed by a probe; and changes of rules.

Dtypes are named like attributes of `torch` ("float32"). Categories have the same names in every source.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from ampbench.records import one_of

LOWER, INSIDE, FLOAT32, WIDEST, UNLISTED, BANNED = CATEGORIES = (
    "lower_precision", "lower_inside", "float32", "widest", "unlisted", "banned",
)  # fmt: skip
"""What a rule does to the inputs of an op: cast them to the autocast dtype; leave them alone, while ops inside cast
theirs to it, as recurrent cells on a CPU, whose states stay fp32; cast them to float32, or to the widest of their
dtypes; leave them alone; refuse them with an error."""
XPU_REFERENCE, PYTORCH_PAGE = "xpu_reference", "pytorch_page"
"""The documents: the vendor's older reference for XPU, and PyTorch's own page."""
DEVICE, FAKE, NOT_OBSERVED = "device", "fake tensors", "not observed"
"""How an op was observed."""
NOT_THERE = "not there"
"""The state of a changed op that one torch does not have."""
UNCHANGED, CHANGED, REFUSED = "unchanged", "changed", "refused"
"""What autocast does to a variant of a call."""


class RuleCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One call of an op: the dtypes of its outputs and of its kernels' inputs.

    `computed` are the floating dtypes that reached computing kernels below autocast (casts and views do not count),
    `casts` the casts between floating dtypes before, in order, as "float32 to float16". `error` is the first line of
    the call's exception; casts before it are recorded.
    """

    outputs: list[str] = []
    computed: list[str] = []
    casts: list[str] = []
    error: str | None = None


class RuleTrial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The same call with and without autocast; `inputs` are the dtypes of its floating inputs, in order."""

    inputs: list[str]
    autocast: RuleCall
    plain: RuleCall

    @property
    def same(self) -> bool:
        """Whether autocast made no difference: the same casts, dtypes and error."""
        return self.autocast == self.plain


class RuleObservation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One op (with its overload, "" the default) on one device type, under autocast to one dtype.

    `documented` maps each document that covers the device to a category; None: the document does not list the op.
    `registered`: the dispatcher has a rule, whichever (None: not an op of the dispatcher). `observed` is the observed
    category, `how` "device", "fake tensors" or "not observed", `reason` why it was not observed. `trials` are keyed by
    the floating inputs' kind: "fp32", "lower", "mixed" (first lower, then fp32). `variants` has for "fp64", "integer",
    "in-place", "out=" and "dtype=" whether autocast left the call "unchanged", "changed" it or "refused" it, without
    variants that the op lacks or that failed.
    """

    op: str
    overload: str = ""
    device: str
    dtype: str
    documented: dict[str, str | None] = {}
    registered: bool | None = None
    observed: Annotated[str, one_of(*CATEGORIES)] | None = None
    how: Annotated[str, one_of(DEVICE, FAKE, NOT_OBSERVED)]
    reason: str = ""
    trials: dict[str, RuleTrial] = {}
    variants: dict[str, str] = {}

    @property
    def name(self) -> str:
        """The op with its overload, `aten::conv1d.padding`."""
        return f"{self.op}.{self.overload}" if self.overload else self.op


class RuleProbe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """All observations of one device type under autocast to `dtypes`; `error` is why there are none."""

    device: str
    dtypes: list[str]
    observations: list[RuleObservation] = []
    error: str = ""

    @property
    def how(self) -> str:
        """How its ops were observed: on the device, on fake tensors, or not at all."""
        ways = {observation.how for observation in self.observations}
        return next((how for how in (DEVICE, FAKE) if how in ways), NOT_OBSERVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChange:
    """A difference of one op between two probes: `field` was `before` and is `after`.

    `field` is "observed", "registered", "documented by …", "variant …" or "op" (there with its rule, or not).
    """

    op: str
    device: str
    dtypes: list[str]
    field: str
    before: str
    after: str

    @property
    def alters(self) -> bool:
        """Whether autocast behaves differently: another rule, another treatment of a call, or a removed rule.

        Documents, new ops, and removed ops without an observed rule change nothing for existing programs.
        """
        if self.field == "op":
            return self.after == NOT_THERE and self.before != f"there, {NOT_OBSERVED}"
        return self.field in ("observed", "registered") or self.field.startswith("variant ")

    @property
    def rule_id(self) -> str:
        """The id of a changed rule, like a case's: the op and the device type, `softmax.int/cuda`."""
        return f"{short_name(self.op)}/{self.device}"


DTYPES = ("float16", "bfloat16")
"""The dtypes that autocast is probed in."""


def short_name(op: str) -> str:
    """Return an op's name as people write it, `softmax.int`."""
    return op.removeprefix("aten::")


def worded(value: str) -> str:
    """Return a category, or another value of a rule, as people read it."""
    return {LOWER: "lower", INSIDE: "lower inside"}.get(value, value)
