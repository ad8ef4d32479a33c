"""A search for modules to keep in fp32 so that the errors of a case meet a budget, and the cost of its result.

The search halves an order of all modules, then leaves out modules that are not needed. Each trial of a set, against
fp64, is stored before the next. The search is deterministic given its trials: after an interruption it runs again on
the stored ones.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from enum import StrEnum
from functools import partial
from glob import escape
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import structs

from ampbench.core.budget import LEAST_KEPT, Budget
from ampbench.core.precisions import EXAMINED, PRECISIONS, SHORT_DTYPES, Precision
from ampbench.core.statement import Statement, state
from ampbench.core.units import UNDEFINED, format_error
from ampbench.errors import UsageError
from ampbench.records import Count, ErrorSize, KeptShare, Share, StepSeconds
from ampbench.records.case import Case
from ampbench.records.kinds import KEEP_FP32
from ampbench.records.labels import few
from ampbench.records.measured import OUT_OF_MEMORY, Failure, Fitness, Skip
from ampbench.records.run import Entry, Selection
from ampbench.records.wire import Task
from ampbench.show.document import Column
from ampbench.studies.study import (
    Ratio,
    Selects,
    Session,
    Study,
    Table,
    advise,
    asks,
    busy,
    info,
    ratio_of,
    short_ratio,
    step_seconds,
)

if TYPE_CHECKING:
    from ampbench.drive.servers import Channel
    from ampbench.store import StoredRun
    from ampbench.studies.work import Piece

A = TypeVar("A")
R = TypeVar("R")
WHOLE = [""]
"""The set that keeps the whole network."""
Units = frozenset[int]
"""A set of units, by their places in the space."""


class KeepAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a search is to find: a set that meets the limits on errors and updates, within `max_trials` sets."""

    max_error: Annotated[
        float, asks("Largest output error (relative L2 against fp64).", metavar="ERROR", least=0, most=1e150)
    ] = Budget.output_rel_l2
    max_gradient_error: Annotated[
        float, asks("The same of gradients, in training.", metavar="ERROR", least=0, most=1e150)
    ] = Budget.grad_rel_l2
    min_update_kept: Annotated[
        float, asks("Least share of an update that arrives, in pure half.", metavar="S", least=0, most=1)
    ] = LEAST_KEPT
    max_trials: Annotated[int, asks("Most sets of modules to try.", metavar="N", least=1, most=100_000)] = 60


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The budget of a case, errors as in `Trial`; None: not bounded."""

    max_error: ErrorSize
    max_gradient_error: ErrorSize | None = None
    min_update_kept: Share | None = None


class Unit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The smallest choice of a search: a module in which no other runs, or several that share parameters.

    `modules` are their paths, `kind` the class of the first. On exact inputs it errs by `own_rel_l2` against itself in
    fp32 (None: unknown), and a share of its outputs `overflows`.
    """

    modules: list[str]
    kind: str
    own_rel_l2: ErrorSize | None = None
    overflows: Share = 0.0


class SearchSpace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The modules of a case to choose from, in the order of running, and the `limits` to meet.

    `containers` are the paths of modules with others inside ("" is the network), outermost first: one whose units are
    all kept is kept whole.
    """

    case_id: str
    units: list[Unit]
    containers: list[str] = []
    limits: Limits
    weights_digest: str = ""
    inputs_digest: str = ""
    notes: list[str] = []


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One step of a case with the modules `kept` in fp32, against the reference; all as in `Divergence`.

    `output_rel_l2` is the largest of all outputs. An error is None where a value is not finite (`nonfinite`
    counts those of outputs and gradients), or where the step raised `error`. `number` counts a case's trials from 0.
    `batch` is 0 for the first batch, from 1 on for batches that confirm a set. `update_kept` is as in `Update`,
    measured where it is bounded; `update_nonfinite` elements of the parameters are not finite after such a step, and
    `update_undefined` says why it is unknown.
    """

    case_id: str
    number: Count = 0
    kept: list[str] = []
    output_rel_l2: ErrorSize | None = None
    grad_rel_l2: ErrorSize | None = None
    nonfinite: Count = 0
    reference_dtype: str = "fp64"
    reference_error: str = ""
    error: str = ""
    batch: Count = 0
    update_kept: KeptShare | None = None
    update_nonfinite: Count = 0
    update_undefined: str = ""


class TimedSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The modules `kept` in fp32, measured: `samples[b]` are the seconds per step of build `b`.

    Build `b` of one set stands beside build `b` of another. `peak_bytes` is as in `MemoryPass` (None: unavailable).
    """

    kept: list[str] = []
    samples: list[list[StepSeconds]] = []
    peak_bytes: Count | None = None


class Timing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The cost of sets of kept modules, measured together; also the request for it, without numbers."""

    sets: list[TimedSet] = []
    fitness: Fitness = Fitness()
    notes: list[str] = []


class KeepSearch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The end of a search: the modules to keep as `keep_fp32` takes them (None: no set meets the budget).

    [""] is the whole network, [] none. `minimal`: no single unit can be left out. `unconfirmed` says why the set was
    not tried on three other batches, `untimed` why it has no `timing`, which also has the set of none and of all.
    """

    case_id: str
    kept: list[str] | None
    minimal: bool = False
    unconfirmed: str = ""
    timing: Timing | None = None
    untimed: str = ""


class TrialAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A request for the errors of a step with the modules `kept` in fp32 on the `batch` of this number, as in `Trial`.

    With `updates`, also the share of an optimizer's step that arrives. A missing batch is a skip.
    """

    kept: list[str] = []
    batch: Count = 0
    updates: bool = False


class Searched(msgspec.Struct, frozen=True, kw_only=True):
    """A search as a run holds it; `ended` is None where the run broke off before."""

    space: SearchSpace
    trials: list[Trial]
    ended: KeepSearch | None = None


def searches(stored: "StoredRun") -> dict[str, Searched]:
    """Return the finished searches of a run, and interrupted ones with a trial, which may continue."""
    spaces, trials, ended = stored.of(SearchSpace), stored.several_of(Trial), stored.of(KeepSearch)
    given_up = {*stored.failures, *stored.skips}
    return {
        case_id: Searched(space=space, trials=trials.get(case_id, []), ended=ended.get(case_id))
        for case_id, space in spaces.items()
        if case_id in ended or (case_id in trials and case_id not in given_up)
    }


def islands(space: SearchSpace, units: Set[int]) -> list[str]:
    """Return the modules to name to `keep_fp32` so that exactly `units` are kept, outermost whole containers first."""
    if len(units) == len(space.units):
        return list(WHOLE) if units else []
    whole = [path for path, inside in _containers(space).items() if inside and inside <= units]
    paths = [path for index in sorted(units) for path in space.units[index].modules]
    return list(dict.fromkeys(next((outer for outer in whole if _within(path, outer)), path) for path in paths))


def units_of(space: SearchSpace, kept: Sequence[str]) -> Units:
    """Return the units that naming the modules `kept` keeps: undoes `islands`."""
    known = {path: frozenset({index}) for index, unit in enumerate(space.units) for path in unit.modules}
    known |= {**_containers(space), "": frozenset(range(len(space.units)))}
    return frozenset(index for path in kept for index in known[path])


def _containers(space: SearchSpace) -> dict[str, Units]:
    """Return the units that have a module in each container, outermost first."""
    return {
        outer: frozenset(
            index for index, unit in enumerate(space.units) if any(_within(path, outer) for path in unit.modules)
        )
        for outer in space.containers
    }


def _within(path: str, outer: str) -> bool:
    return path != outer and path.startswith(f"{outer}." if outer else "")


def share_of(limits: Limits, trial: Trial) -> float:
    """Return the largest share of its limits that a trial uses: up to 1 meets the budget, inf is undefined."""
    if trial.error:
        return math.inf
    shares = [_times(trial.output_rel_l2, limits.max_error)]
    if limits.max_gradient_error is not None:
        shares.append(_times(trial.grad_rel_l2, limits.max_gradient_error))
    if limits.min_update_kept is not None and (trial.update_kept is not None or trial.update_nonfinite):
        lost = None if trial.update_kept is None else max(1.0 - trial.update_kept, 0.0)
        shares.append(_times(lost, 1.0 - limits.min_update_kept))
    return max(shares)


def _times(error: float | None, limit: float) -> float:
    if error is None:
        return math.inf
    return error / limit if limit > 0 else math.inf if error else 0.0


def worst_trials(limits: Limits, trials: Iterable[Trial]) -> dict[tuple[str, ...], Trial]:
    """Return of each set that was tried the trial that errs most, on whichever batch."""
    ordered = sorted(trials, key=lambda trial: share_of(limits, trial))
    return {tuple(trial.kept): trial for trial in ordered}


class KeptSet(NamedTuple):
    """A set that was tried on the first batch, the number of `units` it keeps, and its time to that with none kept.

    `found`: the search ended with this set; `meets`: the set meets the budget; `refuted`: on the first batch alone.
    """

    trial: Trial
    units: int
    timed: TimedSet
    ratio: Ratio | None
    found: bool
    meets: bool
    refuted: bool


def kept_sets(record: Searched) -> list[KeptSet]:
    """Return the sets that were tried, by the number of units they keep."""
    limits, ended = record.space.limits, record.ended
    worst = worst_trials(limits, record.trials)
    timed = {tuple(timing.kept): timing for timing in (ended.timing.sets if ended and ended.timing else [])}
    none = timed.get((), TimedSet()).samples
    sets = []
    for trial in (trial for trial in record.trials if not trial.batch):
        kept, measured = tuple(trial.kept), timed.get(tuple(trial.kept), TimedSet())
        ratio = ratio_of(measured.samples, none) if measured.samples and none else None
        meets = share_of(limits, worst[kept]) <= 1
        refuted, is_answer = share_of(limits, trial) <= 1 and not meets, ended is not None and ended.kept == trial.kept
        sets.append(KeptSet(trial, len(units_of(record.space, kept)), measured, ratio, is_answer, meets, refuted))
    return sorted(sets, key=lambda row: (row.units, row.trial.number))


NAMED, NAMED_IN_TABLES = 6, 2
"""The number of modules of a set that are named."""


def kept_names(kept: Sequence[str], most: int = NAMED) -> str:
    """Return the names of a set as text: "none", "all", or the modules."""
    return "all" if kept == WHOLE else few(kept, most) if kept else "none"


SETS: Sequence[Column[KeptSet]] = (
    Column(
        "kept", lambda row: "(all)" if row.trial.kept == WHOLE else " ".join(row.trial.kept), "kept",
        said=lambda row: f"{kept_names(row.trial.kept, NAMED_IN_TABLES)}{' ←' if row.found else ''}",
    ),
    Column("modules", lambda row: row.units, "modules", "whole"),
    Column("found", lambda row: row.found),
    Column("output_rel_l2", lambda row: row.trial.output_rel_l2, "error", "error"),
    Column("grad_rel_l2", lambda row: row.trial.grad_rel_l2, "gradients", "error", rare=True),
    Column("update_kept", lambda row: row.trial.update_kept, "arrives", "kept", rare=True),
    Column("update_nonfinite", lambda row: row.trial.update_nonfinite),
    Column("meets_budget", lambda row: row.meets, "budget",
           said=lambda row: "met" if row.meets else "missed on another batch" if row.refuted else "missed"),
    Column("seconds", lambda row: step_seconds(row.timed.samples), "step", "s", rare=True),
    Column("ratio", lambda row: row.ratio and row.ratio.value, "time ratio", "ratio",
           lambda row: short_ratio(row.ratio) if row.ratio and row.trial.kept else UNDEFINED, rare=True),
    Column("ratio_low", lambda row: row.ratio and row.ratio.low),
    Column("ratio_high", lambda row: row.ratio and row.ratio.high),
    Column("peak_memory_bytes", lambda row: row.timed.peak_bytes, "peak", "B", rare=True),
    Column("trial", lambda row: row.trial.number),
    Column("reason", lambda row: row.trial.error or None),
)  # fmt: skip
"""Columns of a tried set: its modules, separated by blanks, and its errors on the first batch."""


class Keep(StrEnum):
    """What a search for modules to keep in fp32 comes to."""

    FOUND = "keep-found"
    NOTHING = "keep-nothing"
    WHOLE = "keep-whole"
    MISSED = "keep-missed"
    UNFINISHED = "keep-unfinished"
    CLOSEST = "keep-closest"
    ERROR = "keep-error"
    UPDATE = "keep-update"
    MINIMAL = "keep-minimal"
    SPENT = "keep-spent"
    CONFIRMED = "keep-confirmed"
    UNCONFIRMED = "keep-unconfirmed"
    TIME = "keep-time"
    FASTER = "keep-faster"
    SLOWER = "keep-slower"
    UNTIMED = "keep-untimed"
    PEAK = "keep-peak"
    REFERENCE = "keep-reference"


def conclusions(_: Case, record: Searched) -> Iterator[Statement]:
    """Yield the modules to keep, their error, whether the set is minimal and holds on other batches, and its cost."""
    sets = {tuple(row.trial.kept): row for row in kept_sets(record)}
    kept = record.ended.kept if record.ended else None
    facts = {"units": len(units_of(record.space, kept or [])), "modules": len(record.space.units), "trials": len(sets)}
    if record.ended is None:
        best = next((row for row in sets.values() if row.meets), None)
        facts["units"], names = (best.units, kept_names(best.trial.kept)) if best else (0, None)
        yield state(Keep.UNFINISHED, names=names, **facts)
    elif kept is None:
        yield state(Keep.MISSED, untried=tuple(WHOLE) not in sets or None, **facts)
        worst = worst_trials(record.space.limits, record.trials).values()
        share = partial(share_of, record.space.limits)
        closest = min(worst, key=lambda trial: (share(trial), trial.output_rel_l2 or 0.0))
        raised = next((trial.error for trial in record.trials if trial.error), None)
        yield info(Keep.CLOSEST, names=kept_names(closest.kept), why=raised)
        yield from _errors(record, closest)
    elif not kept:
        yield info(Keep.NOTHING, **facts)
        yield from _errors(record, sets[()].trial)
        yield from _elsewhere(record, record.ended)
    else:
        answer, none = sets[tuple(kept)], sets[()]
        yield state(Keep.WHOLE if kept == WHOLE else Keep.FOUND, names=few(kept, NAMED), **facts)
        yield from _errors(record, answer.trial, none.trial)
        yield info(Keep.MINIMAL if record.ended.minimal else Keep.SPENT, **facts)
        yield from _elsewhere(record, record.ended)
        if record.ended.timing or record.ended.untimed:
            yield from _cost(record.ended, answer, none, sets[tuple(WHOLE)])
    references = {trial.reference_error for trial in record.trials if trial.reference_error}
    yield from (state(Keep.REFERENCE, why=why) for why in references)


def _errors(record: Searched, trial: Trial, before: Trial | None = None) -> Iterator[Statement]:
    """Yield the errors of a set against its limits, and against `before`, the step with no module kept."""
    limits = record.space.limits
    for part, name, limit in (
        ("output", "output_rel_l2", limits.max_error),
        ("gradient", "grad_rel_l2", limits.max_gradient_error),
    ):
        if limit is not None:
            low = getattr(before, name, None)
            yield info(
                Keep.ERROR, what=part, reference=trial.reference_dtype, error=getattr(trial, name), before=low,
                limit=limit, nonfinite=before.nonfinite or None if before and low is None else None,
            )  # fmt: skip
    if limits.min_update_kept is not None:
        yield info(
            Keep.UPDATE, share=trial.update_kept, before=before.update_kept if before else None,
            limit=limits.min_update_kept, nonfinite=trial.update_nonfinite or None, why=trial.update_undefined or None,
        )  # fmt: skip


def _elsewhere(record: Searched, ended: KeepSearch) -> Iterator[Statement]:
    """Yield the largest errors on other batches of the set that was found."""
    others = [trial for trial in record.trials if trial.batch and trial.kept == ended.kept]
    if others:
        gradient = max((trial.grad_rel_l2 for trial in others if trial.grad_rel_l2 is not None), default=None)
        error = max(trial.output_rel_l2 or 0.0 for trial in others)
        yield info(Keep.CONFIRMED, batches=len(others), error=error, gradient=gradient)
    if ended.unconfirmed:
        yield info(Keep.UNCONFIRMED, why=ended.unconfirmed, more=bool(others) or None)


def _cost(ended: KeepSearch, answer: KeptSet, none: KeptSet, whole: KeptSet) -> Iterator[Statement]:
    """Yield the cost of the chosen set against the step with no module kept and the step in fp32."""
    spoilt = busy(ended.timing.fitness) if ended.timing else None
    if spoilt is not None:
        yield spoilt
    elif answer.ratio:
        yield info(Keep.TIME, **answer.ratio.facts)
        if whole is not answer and whole.timed.samples:
            ratio = ratio_of(answer.timed.samples, whole.timed.samples)
            slower = ratio.low is not None and ratio.low > 1
            yield advise(Keep.SLOWER, **ratio.facts) if slower else info(Keep.FASTER, **ratio.facts)
    if not whole.timed.samples:
        yield advise(Keep.UNTIMED, why=ended.untimed or None)
    peaks = {"kept": answer.timed.peak_bytes, "none": none.timed.peak_bytes, "all": whole.timed.peak_bytes}
    if peaks["kept"] is not None:
        yield info(Keep.PEAK, **peaks)


WIDTH = 76
"""Longer calls and lists have a line for each name, as formatters write them."""
_quoted = partial(json.dumps, ensure_ascii=False)

UNDER_AUTOCAST = "# found under autocast: search with bf16_pure or fp16_pure for this tool\n"
TORCHAO = """\
# found in {precision}: measure the error in torchao's format as well
import torch
{imports}

KEPT = {kept}


def is_converted(module: torch.nn.Module, name: str) -> bool:
    inside = any(f"{{name}}.".startswith(f"{{path}}.") for path in KEPT)
    return isinstance(module, torch.nn.Linear) and not inside


{call}
"""
FLOAT8_TRAINING = {
    "imports": "from torchao.float8 import convert_to_float8_training",
    "call": "convert_to_float8_training(model, module_filter_fn=is_converted)",
}
FLOAT8_INFERENCE = {
    "imports": "from torchao.quantization import (\n    Float8DynamicActivationFloat8WeightConfig,\n    quantize_,\n)",
    "call": "config = Float8DynamicActivationFloat8WeightConfig()\nquantize_(model, config, filter_fn=is_converted)",
}
FSDP = """\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

low, fp32 = torch.{low}, torch.float32
for name in {kept}:
    back = {back}
    policy = MixedPrecisionPolicy(param_dtype=fp32, output_dtype=back)
    fully_shard(model.get_submodule(name), mp_policy=policy)
policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=fp32)
fully_shard(model, mp_policy=policy)
"""
OF_ONNX = """\
import ast

import onnx
{imports}
KEPT = {kept}
SCOPES = "pkg.torch.onnx.name_scopes"
network = onnx.load("model.onnx")  # of torch.onnx.export(..., dynamo=True)
nodes = []
for node in network.graph.node:
    metadata = {{entry.key: entry.value for entry in node.metadata_props}}
    scopes = ast.literal_eval(metadata.get(SCOPES, "[]"))[:-1]
    if {{scope.partition("@")[0] for scope in scopes}} & {{*KEPT}}:
        nodes.append(node.name)
{call}
"""
CONVERTED = """\
network = convert_float_to_float16(
    network, keep_io_types=True, node_block_list=nodes
)
casts = [node for node in network.graph.node if node.op_type == "Cast"]
halves = {
    node.output[0]: node.input[0]
    for node in casts
    if node.name.endswith("_cast_to_fp16_node")
}
for node in casts:  # from one kept node to the next, values stay fp32
    if node.name.endswith("_cast_to_fp32_node"):
        node.input[0] = halves.get(node.input[0], node.input[0])
onnx.save(network, "model_fp16.onnx")"""
BUILT = """\
layers = ",".join(f"{{name}}:fp32" for name in nodes)
options = f"--precisionConstraints=obey --layerPrecisions={{layers}}"
print(f"trtexec --onnx=model.onnx --{flag} {{options}}")
# up to TensorRT 10: later ones take the precisions of the ONNX file itself"""


def code(case: Case, record: Searched) -> dict[str, str]:
    """Return Python code that keeps the chosen modules in fp32 by the tool that it is for; empty for none or all."""
    kept = record.ended.kept if record.ended else None
    if not kept or kept == WHOLE:
        return {}
    row, names = PRECISIONS[case.precision], [_quoted(name) for name in kept]
    low, listed = row.rounding, _listed("KEPT = [", names, "]").removeprefix("KEPT = ")
    noted = UNDER_AUTOCAST if row.autocast else ""
    trains = case.phase == "training"
    torchao = FLOAT8_TRAINING if trains else FLOAT8_INFERENCE
    last = [
        name for name in kept if any(_within(path, name) or path == name for path in record.space.units[-1].modules)
    ]
    back = f"None if name == {_quoted(last[0])} else low  # what runs last returns fp32" if last else "low"
    texts = {
        "torch": _with_torch(row, kept),
        "torchao": TORCHAO.format(**torchao, kept=listed, precision=case.precision),
        "FSDP2": noted + FSDP.format(low=low, kept=listed, back=back),
    }
    flag = SHORT_DTYPES[low]
    texts["TensorRT"] = noted + OF_ONNX.format(kept=listed, imports="", call=BUILT.format(flag=flag))
    if flag == "fp16":  # which the converter writes alone
        imports = "from onnxruntime.transformers.float16 import convert_float_to_float16\n"
        texts["onnxruntime"] = noted + OF_ONNX.format(kept=listed, imports=imports, call=CONVERTED)
    return texts


def _with_torch(row: Precision, kept: Sequence[str]) -> str:
    """Return code with `keep_fp32`; names that it would take for patterns are escaped."""
    arguments = ["model", *(_quoted(escape(name)) for name in kept)]
    if row.autocast is not None:
        first, last = [], []
    else:
        first, arguments = ["import torch", ""], [*arguments, "cast_back=True"]
        last = [f"model = model.to(torch.{row.storage})  # after keep_fp32: what is kept stays fp32"]
    return "\n".join([*first, "import ampbench", "", _listed("ampbench.keep_fp32(", arguments, ")"), *last, ""])


def _listed(opening: str, names: Sequence[str], closing: str) -> str:
    """Return code with names in a line, or a line for each."""
    line = f"{opening}{', '.join(names)}{closing}"
    return line if len(line) <= WIDTH else "\n".join([opening, *(f"    {name}," for name in names), closing])


def _refined(selection: Selection, asked: KeepAsked) -> Selection:
    """Return the selection; `UsageError` for a limit without effect."""
    if asked.max_gradient_error != Budget.grad_rel_l2 and selection.phases == ["inference"]:
        raise UsageError("--max-gradient-error bounds the gradients of training, and --phase inference has none")
    return selection


SPACE_TASK = Task("space", Limits, SearchSpace, "ampbench.studies.keep_fp32_measure:search_space")
TRIAL_TASK = Task("trial", TrialAsked, Trial, "ampbench.studies.keep_fp32_measure:do_trial")
TIMING_TASK = Task("timing", Timing, Timing, "ampbench.studies.keep_fp32_measure:do_timing")
OTHER_BATCHES = 3
"""The number of batches, unseen by the search, on which its result is confirmed."""


class TrialsSpentError(Exception):
    """No trial is left."""


class Smallest:
    """A search among units, in an `order` that begins with the most suspected.

    `try_set` returns the share of the budget that a set of units uses, None where there is no room for that set; it
    raises `TrialsSpentError` where no trial is left. `kept` is the smallest set that met the budget, None without any;
    `minimal`: no single unit can be left out of it.
    """

    def __init__(self, order: Sequence[int], try_set: Callable[[Units], float | None]):
        self._order, self._try_set = list(order), try_set
        self._shares: dict[Units, float | None] = {}
        self.kept: Units | None = None
        self.minimal = False

    def run(self) -> "Smallest":
        """Search, as far as trials go, and return itself."""
        with suppress(TrialsSpentError):
            self._search()
        return self

    def _search(self) -> None:
        if self._meets(frozenset()):
            self.minimal = True
            return
        self._halve()
        if self.kept is None:
            return
        *others, _ = (unit for unit in self._order if unit in self.kept)  # without the last it fails
        self._leave_out(others)
        before = None
        while self.kept != before:
            before = self.kept
            for unit in reversed(self._order):
                if unit in self.kept:
                    self._meets(self.kept - {unit})
        self.minimal = True

    def _halve(self) -> None:
        """Find the shortest beginning of the order that meets the budget or has no room."""
        failing, enough = 0, len(self._order)
        if not self._meets(frozenset(self._order)) and self._shares[frozenset(self._order)] is not None:
            return
        while enough - failing > 1:
            middle = (failing + enough) // 2
            beginning = frozenset(self._order[:middle])
            if self._meets(beginning) or self._shares[beginning] is None:
                enough = middle
            else:
                failing = middle

    def _leave_out(self, units: Sequence[int]) -> None:
        """Remove units from the set within the budget, all together or else by halves, the last first."""
        assert self.kept is not None
        if not units or self._meets(self.kept.difference(units)) or len(units) == 1:
            return
        half = len(units) // 2
        self._leave_out(units[half:])
        self._leave_out(units[:half])

    def _meets(self, kept: Units) -> bool:
        """Return whether a set meets the budget, trying it once; the smallest that does is `kept`."""
        if kept not in self._shares:
            self._shares[kept] = self._try_set(kept)
        share = self._shares[kept]
        meets = share is not None and share <= 1.0
        if meets and (self.kept is None or len(kept) < len(self.kept)):
            self.kept = kept
        return meets


def suspected_first(space: SearchSpace) -> list[int]:
    """Return the units in the order of suspicion: overflowing ones first, then by their own error."""
    units = space.units
    return sorted(range(len(units)), key=lambda index: (-units[index].overflows, -(units[index].own_rel_l2 or 0.0)))


class _EndedError(Exception):
    """A reply without an answer: `how` the work on the case ended."""

    def __init__(self, how: Failure | Skip):
        super().__init__(how.reason if isinstance(how, Skip) else how.said)
        self.how = how


def search_piece(session: Session[KeepAsked], channel: "Channel", piece: "Piece") -> KeepSearch | Failure | Skip:
    """Search a case, storing its space and every trial at once; `UsageError` where a resumed network changed."""
    try:
        return _Search(session, channel, piece).ended()
    except _EndedError as error:
        return error.how


class _Search:
    """The search of one case: its questions to a worker, and earlier answers."""

    def __init__(self, session: Session[KeepAsked], channel: "Channel", piece: "Piece"):
        self._session, self._channel, self._piece = session, channel, piece
        self._has_worker = False
        case, asked, begun = piece.planned.case, session.asked, session.begun
        row, trains = PRECISIONS[case.precision], case.phase == "training"
        stored_low = row.storage != "float32" and row.autocast is None and not row.master
        self._limits = Limits(
            max_error=asked.max_error,
            max_gradient_error=asked.max_gradient_error if trains else None,
            min_update_kept=asked.min_update_kept or None if trains and stored_low else None,
        )
        self._trials = list(begun.several_of(Trial).get(case.case_id, [])) if begun else []
        self._space = self._looked_into()
        self._unconfirmed = ""

    def ended(self) -> KeepSearch:
        """Return how the search ends: a set that misses the budget on another batch counts as one that failed."""
        while True:
            smallest = Smallest(suspected_first(self._space), self._share).run()
            if smallest.kept is None or self._holds(islands(self._space, smallest.kept)):
                break
        kept = None if smallest.kept is None else islands(self._space, smallest.kept)
        ended = KeepSearch(
            case_id=self._space.case_id, kept=kept, minimal=smallest.minimal, unconfirmed=self._unconfirmed
        )
        emulated = PRECISIONS[self._piece.planned.case.precision].emulated
        return self._timed(ended, kept) if kept and not emulated else ended

    def _looked_into(self) -> SearchSpace:
        """Return the space; raises `UsageError` where it differs from the run's record of the network."""
        from ampbench.drive.session import check_same_network

        space = self._asked(SPACE_TASK, self._limits)
        begun, case = self._session.begun, self._piece.planned.case
        spaces = begun.of(SearchSpace) if begun else {}
        for case_id, before in spaces.items():
            if begun and begun.cases[case_id].group == case.group:
                check_same_network(begun.header.run, case.workload, before, space)
        if case.case_id not in spaces:
            self._session.keep(self._piece, space)
            return space
        known = spaces[case.case_id]
        modules, others = ((split.containers, [unit.modules for unit in split.units]) for split in (known, space))
        if begun and modules != others:
            raise UsageError(
                f"run {begun.header.run} cannot be resumed: the modules are others than it began with; start a new run"
            )
        return known

    def _share(self, units: Units) -> float | None:
        """Return the share of the budget that a set uses on its worst batch, trying it on the first."""
        kept = islands(self._space, units)
        known = worst_trials(self._limits, self._trials).get(tuple(kept))
        if known is None:
            if sum(not trial.batch for trial in self._trials) >= self._session.asked.max_trials:
                raise TrialsSpentError
            known = self._tried(kept, 0)
        return None if known.error == OUT_OF_MEMORY else share_of(self._limits, known)

    def _holds(self, kept: list[str]) -> bool:
        """Return whether a set meets the budget on other available batches, too."""
        self._unconfirmed = ""
        for batch in range(1, OTHER_BATCHES + 1):
            known = next((earlier for earlier in self._trials if earlier.batch == batch and earlier.kept == kept), None)
            try:
                trial = known or self._tried(kept, batch)
            except _EndedError as error:
                self._unconfirmed = str(error)
                return True
            if share_of(self._limits, trial) > 1.0:
                return False
        return True

    def _tried(self, kept: list[str], batch: int) -> Trial:
        asked = TrialAsked(kept=kept, batch=batch, updates=self._limits.min_update_kept is not None)
        trial = structs.replace(self._asked(TRIAL_TASK, asked), number=len(self._trials), batch=batch)
        self._session.keep(self._piece, trial)
        self._trials.append(trial)
        return trial

    def _timed(self, ended: KeepSearch, kept: list[str]) -> KeepSearch:
        """Return a search with the cost of its set; a failed measurement does not lose the search."""
        self._has_worker = False  # the trials' reference must not use memory during the measurement
        runs = [trial.kept for trial in self._trials if not trial.batch and not trial.error]
        sets = [TimedSet(kept=tried) for tried in ([], kept, *([] if kept == WHOLE else [WHOLE])) if tried in runs]
        try:
            return structs.replace(ended, timing=self._asked(TIMING_TASK, Timing(sets=sets)))
        except _EndedError as error:
            return structs.replace(ended, untimed=str(error))

    def _asked(self, task: Task[A, R], asked: A) -> R:
        """Return the answer of the case's own worker, which keeps the reference from one trial to the next."""
        from ampbench.studies.work import ask_worker

        fresh, self._has_worker = not self._has_worker, True
        settings = self._session.prepared.settings
        answer = ask_worker(self._channel, self._piece.planned, settings, task, asked, fresh=fresh)
        if isinstance(answer, Failure | Skip):
            raise _EndedError(answer)
        return answer


def trial_said(entry: Entry) -> str:
    """Return "trial 12: layer.2, layer.5 kept, error 3.1e-03"; "" for other entries."""
    if not isinstance(entry, Trial):
        return ""
    erred = f"error {format_error(entry.output_rel_l2)}" if entry.output_rel_l2 is not None else entry.error
    return (
        f"trial {entry.number + 1}: {kept_names(entry.kept)} kept, {erred or f'{entry.nonfinite:,} values not finite'}"
    )


PRICED = "kept modules output_rel_l2 grad_rel_l2 update_kept meets_budget seconds ratio peak_memory_bytes"
AGAINST = "relative L2 errors against fp64; time ratio: to none kept, 95% interval"


def _is_priced(row: KeptSet) -> bool:
    return bool(row.timed.samples) or (row.found and row.units > 0)


STUDY: Study[KeepAsked, Searched] = Study(
    kind=KEEP_FP32,
    help="""\
Search a small set of modules to keep in fp32 so that the errors meet a budget, and measure what it costs.

Each trial is a step with some modules kept, against fp64. It ends with a set from which no single module can be left
out, its time and memory, and the code to paste. Every trial is stored: an interrupted search goes on with --resume.

\b
Examples:
  ampbench explain keep-fp32 model.py:make --max-error 2e-3
  ampbench explain keep-fp32 mlp --phase training --max-gradient-error 1e-2
  ampbench explain keep-fp32 resnet18 --precision fp16_pure --max-trials 30
  ampbench explain keep-fp32 --resume 1f9a3c    an interrupted search
""",
    doing="searching",
    asked=KeepAsked,
    told=searches,
    selects=Selects(among=EXAMINED),
    refined=_refined,
    work=lambda session: partial(search_piece, session),
    progress=trial_said,
    title="What to keep in fp32",
    key="search",
    code=code,
    remarks=lambda record: [
        *record.space.notes,
        *(record.ended.timing.notes if record.ended and record.ended.timing else []),
    ],
    tables=(
        Table("sets", SETS, kept_sets, "Error, time and memory", AGAINST, keys=PRICED, only=_is_priced),
        Table(
            "", SETS, kept_sets, "Other sets that were tried", keys=PRICED, only=lambda row: not _is_priced(row),
            folded=True,
        ),
    ),
    conclusions=conclusions,
)  # fmt: skip
