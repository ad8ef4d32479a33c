"""`ampbench study ceilings`: what this machine's devices attain at best."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.cli.explain.session import go_on_by, told
from ampbench.cli.options import (
    DEFAULT_RESULTS,
    Devices,
    Format,
    Json,
    Label,
    OutputFormat,
    Results,
    Threads,
    Timeout,
    chosen_format,
    refuse_beside_resume,
)
from ampbench.cli.selecting import make_settings, positive
from ampbench.errors import StoreError
from ampbench.records.runs import CEILINGS, Asked, Selection, Settings
from ampbench.units import parse_seconds

if TYPE_CHECKING:
    from ampbench.records.runs import Header
    from ampbench.records.studies import Ceiling
    from ampbench.running.ceilings import Piece, PreparedCeilings, Watch
    from ampbench.store import RunWriter, StoredRun

PARTLY_FAILED, INTERRUPTED = 3, 130
DEFAULTS = Settings()
DEFAULT_SECONDS = "2"
WITH_RESUME = frozenset({"resume", "results", "every", "format", "json"})
"""What a command line may say beside --resume; all else is the run's own."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of a session: the run, why it could not be stored, if so, and whether a measurement failed."""

    stored: "StoredRun"
    problem: "StoreError | None"
    failed: bool


def command(
    context: typer.Context,
    device: Devices = None,
    operation: Annotated[
        list[str] | None,
        typer.Option("--operation", metavar="NAME", help="matmul, conv or copy. Repeatable. Default: all."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype",
            metavar="NAME",
            help="fp32, tf32, bf16, fp16 or fp64. Repeatable. Default: all the device has, but fp64.",
        ),
    ] = None,
    seconds: Annotated[
        str, typer.Option(metavar="SECONDS", help="Timing of each operation in each dtype, over its sizes.")
    ] = DEFAULT_SECONDS,
    every: Annotated[bool, typer.Option("--all", help="List every size, not only the best.")] = False,
    timeout: Timeout = f"{DEFAULTS.timeout_seconds:g}",
    threads: Threads = DEFAULTS.threads,
    results: Results = DEFAULT_RESULTS,
    label: Label = "",
    resume: Annotated[
        str, typer.Option("--resume", metavar="RUN", help="Measure what this run lacks: all is its own.")
    ] = "",
    format: Format = OutputFormat.TABLE,
    json: Json = False,
) -> int:
    """Measure what a device attains at best: FLOP/s of matrix products and convolutions, copy bandwidth.

    In each dtype, over sizes from small to large, on random values. Says what half precision brings at most on this
    machine and, where the device's datasheet is known, what share of its peaks is reached. The run is stored: ampbench
    show RUN prints it again, with --details every size.

    \b
    Examples:
      ampbench study ceilings
      ampbench study ceilings --device cpu --threads 1 --dtype fp32 --dtype bf16
      ampbench study ceilings --operation copy --seconds 500ms --all
    """
    chosen = chosen_format(format, json)
    from ampbench.running.ceilings import (
        chosen_ceiling_dtypes,
        chosen_operations,
        is_unfinished,
        new_ceilings_header,
        prepare_ceilings,
    )

    def tell(stored: "StoredRun") -> None:
        from ampbench.cli.study.ceiling_printing import print_ceilings

        print_ceilings(stored, [], chosen, everything=every)

    if resume:
        refuse_beside_resume(context, WITH_RESUME)
        return go_on_by(
            resume, results, CEILINGS, is_unfinished, lambda begun, writer: _go_on(begun, writer, tell), tell
        )
    settings = make_settings(1, 1, DEFAULTS.min_run_seconds, "", timeout, "", threads, DEFAULTS.seed)
    asked = Asked(
        seconds=positive("--seconds", parse_seconds(seconds)),
        operations=chosen_operations(operation or []),
        dtypes=chosen_ceiling_dtypes(dtype or []),
    )
    selection = Selection(devices=device or [])
    from ampbench import store
    from ampbench.cli.printing import print_note

    nothing = "interrupted: nothing was measured"
    try:
        with prepare_ceilings(selection, settings, asked) as prepared:
            header = new_ceilings_header(prepared, selection, ["ampbench", *sys.argv[1:]], label)
            with store.RunWriter.create(results, header) as writer:
                seen = _measured(prepared, header, writer)
    except KeyboardInterrupt:
        print_note(nothing)
        return INTERRUPTED
    if seen.problem is None and seen.stored.ending == "interrupted" and not seen.stored.ceilings:
        writer.path.unlink()  # a run of nothing would stand in every list
        print_note(nothing)
        return INTERRUPTED
    return _told(seen, tell)


def _go_on(begun: "StoredRun", writer: "RunWriter", tell: "Callable[[StoredRun], None]") -> int:
    """Measure what a run lacks into its file, and return the exit code."""
    from ampbench.cli.printing import print_note
    from ampbench.running.ceilings import prepare_ceilings

    header = begun.header
    try:
        with prepare_ceilings(header.selection, header.settings, header.asked or Asked(), begun) as prepared:
            seen = _measured(prepared, header, writer, begun)
    except KeyboardInterrupt:
        print_note("interrupted: nothing was added to what was measured before")
        return INTERRUPTED
    return _told(seen, tell)


def _measured(
    prepared: "PreparedCeilings", header: "Header", writer: "RunWriter", begun: "StoredRun | None" = None
) -> Seen:
    """Measure what is planned; what was measured is returned even where it could not all be stored."""
    from ampbench import store
    from ampbench.running.ceilings import measure_ceilings

    found: list[Ceiling] = []
    failed = False
    try:
        with _progress(prepared.pieces) as show:

            def watch(piece: "Piece", ceiling: "Ceiling | None") -> None:
                nonlocal failed
                if ceiling is not None:
                    found.append(ceiling)
                    failed |= bool(ceiling.error and not piece.lacking)
                show(piece, ceiling)

            measure_ceilings(prepared, writer, watch)
    except StoreError as error:
        return Seen(store.gathered(writer.path, header, found, begun), error, failed)
    return Seen(store.read_run(writer.path), None, failed)


def _told(seen: Seen, tell: "Callable[[StoredRun], None]") -> int:
    return told(seen.stored, seen.problem, tell) or (PARTLY_FAILED if seen.failed else 0)


@contextmanager
def _progress(pieces: "Sequence[Piece]") -> "Iterator[Watch]":
    """Yield a watcher that tells on a terminal what is being measured, and how long the rest will take."""
    from rich.console import Console

    from ampbench.cli.progress import PiecesLeft

    left = PiecesLeft([piece.named for piece in pieces])
    with Console(stderr=True).status("") if sys.stderr.isatty() else nullcontext() as status:

        def watch(piece: "Piece", ceiling: "Ceiling | None") -> None:
            if ceiling is None:
                left.begin(piece.named)
            if status is not None:
                status.update(f"measuring {piece.named}{left.said()} …")

        yield watch
