"""`ampbench explain rules`: what autocast does to each op, against what documents say of it."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.cli.options import (
    A_RUN,
    DEFAULT_RESULTS,
    TIMEOUT,
    Format,
    Label,
    PieceTimeout,
    Results,
    Verbose,
    many_names,
    run_argument,
    run_option,
    typed_seconds,
)
from ampbench.cli.printing import check_writable, print_document, print_note, write_files
from ampbench.core.units import one_of
from ampbench.errors import CASE_FAILED, INTERRUPTED, NothingComparableError, NothingToRunError, UsageError
from ampbench.records.case import DEVICES
from ampbench.records.rules import RuleProbe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampbench.store import StoredRun


def command(
    *,
    run: Annotated[str | None, run_argument("RUN", f"Tell of this stored run, {A_RUN}, instead of probing.")] = None,
    device: Annotated[
        list[str] | None,
        many_names("--device", f"{one_of(DEVICES)}, here or not. Default: all."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        many_names("--dtype", "Autocast to fp16 or bf16. Default: both."),
    ] = None,
    op: Annotated[
        list[str] | None,
        many_names("--op", "Only this op, as softmax or softmax.int; nothing is stored."),
    ] = None,
    every: Verbose = False,
    against: Annotated[str | None, run_option("--against", "Say only what changed since this stored run.")] = None,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the run here, too; compressed if named .gz."),
    ] = None,
    timeout: PieceTimeout = TIMEOUT,
    format: Format,
) -> int:
    """Run each op that has an autocast rule, and hold what happens to what documents say; stored like any run.

    A device that is not here is stood in for by fake tensors: the rules are seen, no hardware is.

    \b
    Examples:
      ampbench explain rules
      ampbench explain rules --device xpu --op softmax --op prelu
      ampbench explain rules -o torch-2.15.jsonl.gz
      ampbench explain rules --against torch-2.11.jsonl.gz      what an upgrade changed
    """
    from ampbench.instruments.rules import show
    from ampbench.instruments.rules.findings import chosen_devices, chosen_dtypes

    seconds = typed_seconds("--timeout", timeout)
    devices, dtypes, ops = chosen_devices(device or ()), chosen_dtypes(dtype or ()), op or []
    if output is not None and (run is not None or ops):
        raise UsageError(f"-o stores a whole new probe: leave out {'--op' if ops else 'RUN'}")
    if output is not None:
        check_writable(output)
    earlier = None if against is None else _read(against, results)
    code = 0
    if run is not None:
        stored = _read(run, results)
        if missing := [name for name in stored.header.selection.devices if name not in stored.of(RuleProbe)]:
            print_note(f"{run} has no probe of {', '.join(missing)}, which was asked for")
    else:
        # An op that is gone can be named only beside the probe that knew it: to compare, all are probed.
        try:
            stored, code = _probed(
                devices, dtypes, ops if earlier is None else [], seconds, None if ops else results, label
            )
        except KeyboardInterrupt:
            print_note("interrupted: nothing was probed")
            return INTERRUPTED
    if output is not None:
        from ampbench.store import encode_run

        files = {output: encode_run(stored.header, [*stored.of(RuleProbe).values(), *stored.footers], output)}
        write_files(files, f"run {stored.header.run} has it all the same")
        print_note(f"stored in {output}")
    read = [stored] if earlier is None else [earlier, stored]
    *before, probes = _chosen(read, devices, dtypes, ops)
    if not probes:
        raise NothingComparableError(f"{run} has nothing of {', '.join(devices)} in {', '.join(dtypes)}")
    if not before:
        found = show.document_of_probes(stored.header, probes, everything=every, ops_first=bool(ops))
    else:
        found = show.document_of_changes(_paired(before[0], probes, against))
    print_document(found, format)
    return code


def _read(name: str, results: Path) -> "StoredRun":
    """Return the run called `name`; `UsageError` where it holds no rules."""
    from ampbench import store

    stored = store.read_run(store.find_run(name, results))
    if not stored.of(RuleProbe):
        raise UsageError(
            f"run {stored.header.run} holds no probe of autocast's rules: `ampbench explain rules` stores one"
        )
    return stored


def _probed(
    devices: "Sequence[str]",
    dtypes: "Sequence[str]",
    ops: "Sequence[str]",
    timeout: float,
    results: Path | None,
    label: str,
) -> "tuple[StoredRun, int]":
    """Return a new probe, stored in the folder `results` unless that is None, and the exit code it deserves."""
    from ampbench import store
    from ampbench.drive.servers import ONLY, Pool, ServerChannel, ask_environment
    from ampbench.drive.session import now
    from ampbench.instruments.rules import instrument
    from ampbench.records.run import Footer

    probes: list[RuleProbe] = []
    if results is not None:
        store.require_writable(results)
    with ExitStack() as stack:
        pool = stack.enter_context(Pool({ONLY: ServerChannel}))
        header = instrument.new_rules_header(
            ask_environment(pool), devices, timeout, ["ampbench", *sys.argv[1:]], label
        )
        writer = None
        if results is not None:
            writer = stack.enter_context(store.RunWriter.create(results, header))

        def keep(probe: "RuleProbe") -> None:
            probes.append(probe)
            if writer is not None:
                writer.append(probe)

        def watch(device: str) -> None:
            if sys.stderr.isatty():
                print_note(f"probing {device} …")

        footer, gone = Footer(ended="interrupted", finished_at=now()), 0
        try:
            problems, ended = instrument.probe_devices(pool, devices, dtypes, ops, timeout, keep, watch)
            footer = Footer(ended=ended, finished_at=now())
        except NothingToRunError as error:  # a server that cannot start any more
            if not probes:
                raise
            problems, ended, gone = [str(error)], "interrupted", error.exit_code
        finally:
            if writer is not None and not probes:
                writer.path.unlink()  # a run of nothing would stand in every list
            elif writer is not None:
                writer.append(footer)
        if not probes:
            if ended == "interrupted":
                raise KeyboardInterrupt
            raise NothingToRunError("; ".join(problems))
    for problem in problems:
        print_note(problem)
    if writer is not None:
        kept = "what was probed is kept" if ended == "interrupted" else "stored"
        print_note(f"{kept} as run {header.run}")
    path = Path() if writer is None else writer.path
    stored = store.gathered(path, header, [*probes, footer])
    if gone:
        return stored, gone
    return stored, INTERRUPTED if ended == "interrupted" else CASE_FAILED if problems else 0


def _chosen(
    read: "Sequence[StoredRun]", devices: "Sequence[str]", dtypes: "Sequence[str]", ops: "Sequence[str]"
) -> "list[list[RuleProbe]]":
    """Return what is asked for of each of `read`; an op need be known to one of them only."""
    from ampbench.instruments.rules.findings import chosen_ops, restricted

    known = {one.name: None for stored in read for probe in stored.of(RuleProbe).values() for one in probe.observations}
    meant = chosen_ops(ops, known) if ops else None
    probed = ([one for one in each.of(RuleProbe).values() if one.device in devices] for each in read)
    cut = [[restricted(one, dtypes, meant) for one in probes] for probes in probed]
    return [[probe for probe in probes if probe.dtypes] for probes in cut]


def _paired(
    earlier: "Sequence[RuleProbe]", probes: "Sequence[RuleProbe]", against: str | None
) -> "list[tuple[RuleProbe, RuleProbe]]":
    """Return earlier and later probe of each device; what is in one only is left out, with a note."""

    known = {probe.device: probe for probe in earlier}
    pairs = []
    for probe in probes:
        before = known.get(probe.device)
        if before is not None and set(before.dtypes) & set(probe.dtypes):
            pairs.append((before, probe))
        else:
            print_note(f"{against} has nothing of {probe.device} in {', '.join(probe.dtypes)}")
    if not pairs:
        raise NothingComparableError(f"{against} and this probe have no device and dtype in common")
    return pairs
