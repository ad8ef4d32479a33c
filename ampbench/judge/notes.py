"""Notes on a run: one table of codes, each with a function that returns its cases and its facts."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from ampbench.core import by_key
from ampbench.core.budget import MOST_OF_LOSS
from ampbench.core.precisions import FORMATS, PRECISIONS, SHORT_DTYPES
from ampbench.core.statement import Note, Severity, Statement, state
from ampbench.judge import rounds as fitness
from ampbench.judge.verdict import at_judged_places
from ampbench.records.labels import Pending, emulated_of, few, kernels_said, not_the_commits, remarks
from ampbench.records.measured import CONV, NATIVE, Divergence, MemoryPass, Round
from ampbench.show.rows import Group, Row, grouped, number, precision_label
from ampbench.store import StoredRun
from ampbench.workloads.index import LIBRARIES, RANDOM

FPMATH_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")
"""Environment variables that decide the rounding of fp32 products, before torch's switches."""
CEILING_REACHED = 1.05
"""A larger share of a ceiling is impossible: the excess is more than the noise of two measurements."""

Facts = Mapping[str, float | str]
Held = tuple[Iterable[str], Facts]
"""The ids of the cases of a note (`THE_RUN`: of the run), and its facts."""
THE_RUN = ("",)
Holds = Callable[[StoredRun, Sequence[Row]], Iterable[Held]]
"""Returns the cases of a note on the rows of a run, with their facts."""


def statements(stored: StoredRun, rows: Sequence[Row]) -> list[Statement]:
    """Return the notes on the rows of a run, one for each case of a note."""
    flaws = [
        flaw
        for row in rows
        if row["outcome"] == "ok" and (errors := stored.divergence.get(row["case_id"])) is not None
        for flaw in remarks(errors)
    ]
    held = [
        state(code, case_id, severity, **facts)
        for code, severity, holds in NOTES
        for case_ids, facts in holds(stored, rows)
        for case_id in dict.fromkeys(case_ids)
    ]
    return flaws + held


def _emulated(stored: StoredRun, rows: Sequence[Row]) -> Iterator[Held]:
    for name in measured_devices(rows):
        if (device := stored.header.environment.device(name)) is not None:
            ran = {row["precision"] for row in rows if row["device"] == name and row["outcome"] == "ok"}
            if halves := emulated_of(device, ran):
                yield THE_RUN, {"halves": " and ".join(halves), "device": "CPU" if name == "cpu" else "device"}


def _imported(stored: StoredRun, _: Sequence[Row]) -> Iterator[Held]:
    if (imported := stored.header.imported) is not None:
        readings = bool(stored.readings)
        yield THE_RUN, {"program": imported.program, "file": imported.file, "readings": readings}


def _control(stored: StoredRun, rows: Sequence[Row]) -> Iterator[Held]:
    control = fitness.control_ratio(stored)
    if control is not None and any(row["case_id"] == control.case_id for row in rows):
        yield [control.case_id], {"apart": control.apart - 1}


def _modified(stored: StoredRun, rows: Sequence[Row]) -> Iterator[Held]:
    workloads = {row["case_id"]: row["workload"] for row in rows}
    names: dict[str, list[str]] = {}
    for measured in stored.rounds:
        if measured.case_id in workloads and measured.changed_in_place:
            names.setdefault(workloads[measured.case_id], []).extend(measured.changed_in_place)
    for workload, changed in names.items():
        yield [next(case_id for case_id, name in workloads.items() if name == workload)], {"names": few(changed)}


def _of_rounds(holds: Callable[[Round], bool | None]) -> Holds:
    """Return a function that yields the cases with a round for which `holds` is true."""

    def found(stored: StoredRun, rows: Sequence[Row]) -> Iterator[Held]:
        shown_ids = {row["case_id"] for row in rows}
        yield [measured.case_id for measured in stored.rounds if measured.case_id in shown_ids and holds(measured)], {}

    return found


def _fp32_products(stored: StoredRun, rows: Sequence[Row], *, meant: bool) -> Iterator[Held]:
    """Yield cases whose fp32 products were rounded against the precision's intent; `meant`: not rounded against it."""
    rounded: dict[str, dict[str, str]] = {}
    measured: list[Round | Divergence] = [*stored.rounds, *stored.divergence.values()]
    for part in measured:
        if part.fp32_products is not None:
            rounded.setdefault(part.case_id, {}).update(part.fp32_products)
    variables = stored.header.environment.variables
    known = ", ".join(f"{name}={variables[name]}" for name in FPMATH_VARIABLES if name in variables)
    facts = {"variables": known} if known else {}
    for row in rows:
        precision, dtypes = PRECISIONS.get(row["precision"]), rounded.get(row["case_id"])
        if precision is None or dtypes is None or row["outcome"] != "ok" or bool(dtypes) is meant:
            continue
        if meant and precision.fp32_products in ("tf32", "bf16"):
            yield [row["case_id"]], {"dtype": precision.fp32_products, **facts}
        elif not meant and precision.fp32_products == "ieee":
            yield [row["case_id"]], {"dtypes": " and ".join(sorted(set(dtypes.values()))), **facts}


def _of_memory(facts: Callable[[Row, MemoryPass], Facts | None]) -> Holds:
    """Return a function that yields the cases whose memory pass has `facts`."""

    def found(stored: StoredRun, rows: Sequence[Row]) -> Iterator[Held]:
        for row in rows:
            if (memory := stored.memory.get(row["case_id"])) and (known := facts(row, memory)) is not None:
                yield [row["case_id"]], known

    return found


def _nothing_cast(row: Row, memory: MemoryPass) -> Facts | None:
    precision = PRECISIONS.get(row["precision"])
    dtype = SHORT_DTYPES.get(precision.autocast or "") if precision is not None else None
    return {"dtype": dtype} if dtype and memory.flops and dtype not in memory.flops else None


def _contiguous(row: Row, memory: MemoryPass) -> Facts | None:
    """Return {} where contiguous convolutions in half do most FLOPs of a case on CUDA, else None."""
    by_dtype = (memory.flops_by_operation or {}).get(CONV, {})
    most = sum(by_dtype.get(half, 0) for half in FORMATS) > sum((memory.flops or {}).values()) / 2
    return {} if row["device"] == "cuda" and row["memory_format"] == "contiguous" and most else None


def _attention(stored: StoredRun, rows: Sequence[Row]) -> Iterator[Held]:
    for members in grouped(rows).values():
        kernels: dict[str, list[str]] = {}
        case_ids = []
        for row in members:
            memory = stored.memory.get(row["case_id"])
            if row["outcome"] == "ok" and memory is not None and memory.attention is not None:
                kernels.setdefault(kernels_said(memory.attention), []).append(precision_label(row))
                case_ids.append(row["case_id"])
        if len(kernels) > 1:
            ran = "; ".join(f"{kernel} in {', '.join(names)}" for kernel, names in kernels.items())
            yield case_ids, {"kernels": ran, "held": not any(NATIVE in kernel for kernel in kernels)}


def _switches(stored: StoredRun, rows: Sequence[Row]) -> Iterator[Held]:
    case_ids = {row["workload"]: row["case_id"] for row in rows if row["family"] == "user"}
    for source in stored.header.sources:
        if source.name in case_ids and source.switches:
            yield [case_ids[source.name]], {"switches": ", ".join(source.switches)}


def _misses(stored: StoredRun, rows: Sequence[Row]) -> Iterator[Held]:
    workloads = set()
    for row in rows:
        errors = stored.divergence.get(row["case_id"])
        recipe = errors.recipe if errors is not None else None
        if recipe is not None and recipe.trained and row["workload"] not in workloads:
            workloads.add(row["workload"])
            kind = recipe.optimizer.rpartition(".")[2]
            counts = {"missed": len(recipe.missed), "trained": recipe.trained}
            more = {"foreign": recipe.foreign} if recipe.foreign else {}
            yield [row["case_id"]], {"optimizer": kind, "names": few(recipe.missed), **counts, **more}


def _preset(stored: StoredRun, rows: Sequence[Row]) -> Iterator[Held]:
    if preset := stored.header.selection.preset:
        yield [row["case_id"] for row in rows if row["family"] == "user"], {"preset": preset}


def _random_weights(stored: StoredRun, rows: Sequence[Row]) -> Iterator[Held]:
    cases = [stored.cases[row["case_id"]] for row in rows if row["family"] in LIBRARIES]
    yield [case.case_id for case in cases if case.parameters.get("weights") == RANDOM], {}


def _above_ceiling(_: StoredRun, rows: Sequence[Row]) -> Iterator[Held]:
    shares = {row["case_id"]: number(row["ceiling_share"]) or 0.0 for row in rows}
    above = {case_id: share for case_id, share in shares.items() if share > CEILING_REACHED}
    yield above, {"share": max(above.values(), default=0.0)}


def _others(stored: StoredRun, rows: Sequence[Row]) -> Iterator[Held]:
    shown_ids = {row["case_id"] for row in rows}
    telemetry = [
        measured.telemetry
        for measured in stored.rounds
        if measured.case_id in shown_ids and measured.telemetry is not None
    ]
    if processes := [process for sample in telemetry for process in sample.processes]:
        yield THE_RUN, {"processes": few(processes)}


def _losses(stored: StoredRun, _: Sequence[Row], *, note: Note) -> Iterator[Held]:
    for case_id, divergence in at_judged_places(stored.divergence, stored.late).items():
        loss = divergence.loss_alone
        if loss is None:
            continue
        if note is Note.LOSS_CONSTANT and loss.constant is not None:
            yield [case_id], {name: getattr(loss, name) for name in ("constant", "rounded", "dtype", "op")}
        elif note is Note.LOSS_BROKEN and loss.nonfinite_at:
            yield [case_id], {"at": loss.nonfinite_at}
        elif note is Note.LOSS_ERROR and (loss.grad_rel_l2 or 0.0) > MOST_OF_LOSS:
            yield [case_id], {"at": loss.grad_at, "error": loss.grad_rel_l2 or 0.0}


def _unquiet(stored: StoredRun, rows: Sequence[Row], *, device: bool) -> Iterator[Held]:
    causes, devices = fitness.unquiet(stored), set(measured_devices(rows))
    if causes and device is (devices != {"cpu"} and fitness.unsteady_device(stored)):
        threads = "cpu" in devices and stored.header.environment.threads != 1 and not stored.header.in_program
        facts: dict[str, float | str] = {} if device else {"threads": threads, "longer": stored.header.longer}
        yield THE_RUN, {"causes": "; ".join(causes), **facts}


def _other_code(stored: StoredRun, _: Sequence[Row]) -> Iterator[Held]:
    if reason := not_the_commits(stored.header):
        yield THE_RUN, {"why": reason}


NOTES: Sequence[tuple[Note, Severity, Holds]] = (
    (Note.EMULATED, Severity.PROBLEM, _emulated),
    (Note.IMPORTED, Severity.PROBLEM, _imported),
    (Note.OTHER_CODE, Severity.PROBLEM, _other_code),
    (Note.CONTROL, Severity.INFO, _control),
    (Note.MODIFIES_INPUTS, Severity.PROBLEM, _modified),
    (Note.COMPILED, Severity.PROBLEM, _of_rounds(lambda measured: measured.comes_compiled)),
    (Note.ROUNDED, Severity.PROBLEM, partial(_fp32_products, meant=False)),
    (Note.NOT_ROUNDED, Severity.ADVICE, partial(_fp32_products, meant=True)),
    (Note.NOTHING_CAST, Severity.PROBLEM, _of_memory(_nothing_cast)),
    *(
        (note, Severity.ADVICE, partial(_losses, note=note))
        for note in (Note.LOSS_CONSTANT, Note.LOSS_BROKEN, Note.LOSS_ERROR)
    ),
    (Note.CHANNELS_LAST, Severity.ADVICE, _of_memory(_contiguous)),
    (Note.ATTENTION, Severity.ADVICE, _attention),
    (Note.NO_GRAD, Severity.ADVICE, _of_rounds(lambda measured: measured.no_grad)),
    (Note.OPTIMIZER_MISSES, Severity.PROBLEM, _misses),
    (Note.SWITCHES, Severity.PROBLEM, _switches),
    (Note.PRESET, Severity.ADVICE, _preset),
    (Note.RANDOM_WEIGHTS, Severity.PROBLEM, _random_weights),
    (Note.ABOVE_CEILING, Severity.PROBLEM, _above_ceiling),
    (Note.UNSETTLED, Severity.PROBLEM, _of_rounds(lambda measured: measured.steady is False)),
    (Note.OTHER_PROCESSES, Severity.PROBLEM, _others),
    (
        Note.NO_GRAPHS,
        Severity.PROBLEM,
        _of_memory(lambda _, memory: {"why": "; ".join(why)} if (why := memory.graphs_left_aside) else None),
    ),
    (Note.UNSTEADY, Severity.PROBLEM, partial(_unquiet, device=True)),
    (Note.UNQUIET, Severity.PROBLEM, partial(_unquiet, device=False)),
)
"""Every note on a run: its code, its severity, and the function that finds its cases."""


def measured_devices(rows: Iterable[Row]) -> list[str]:
    """Return the device types on which anything was measured, in order of appearance."""
    return list(dict.fromkeys(row["device"] for row in rows if row["outcome"] == "ok"))


def skips(rows: Iterable[Row]) -> list[Statement]:
    """Return a statement on each reason for skipped `rows`, with their precisions or whole tables."""
    groups = grouped(rows)
    out = ((group, row) for group, members in groups.items() for row in members if row["outcome"] == "skipped")
    reasons: dict[str, list[tuple[Group, Row]]] = by_key(out, lambda pair: pair[1]["reason"])
    whole = {group for group, members in groups.items() if all(row["outcome"] == "skipped" for row in members)}
    statements = []
    for reason, skipped_rows in reasons.items():
        everywhere = Counter(row["precision"] for _, row in skipped_rows)
        names = [
            f"{group.workload} {group.phase} {group.path}"
            if group in whole and everywhere[row["precision"]] < len(groups)
            else precision_label(row)
            for group, row in skipped_rows
        ]
        statements.append(skipped(reason, names))
    return statements


def skipped(reason: str, names: Sequence[str]) -> Statement:
    """Return a statement on cases skipped for a reason; `names` has one for each."""
    code = Note.PENDING if isinstance(reason, Pending) else Note.SKIPPED
    return state(code, "", Severity.INFO, names=few(names, 4), why=str(reason), cases=len(names))
