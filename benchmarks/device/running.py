"""Runs the items of a part, each in a process of its own with a limit, and tells what came of them.

Nothing that an item does ends a part: it fails, by its limit, an exception or a crash, and is a row with the reason;
the others go on. A part's folder has `runs/` (run files), `logs/` (what each item printed), `part-NAME.json` (its rows)
and the summary of all parts there are, `summary.json` and `summary.md`, written anew after every item. Needs nothing
but Python: what torch and ampbench are needed for is done in the items' processes.
"""

import contextlib
import datetime
import importlib
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.device.parts import CARD, EVERY, MACHINE, PACKING, Item, Part

ROOT = Path(__file__).parents[2]
PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
LEAST = 5
"""An item is not begun with less than so many seconds left for it."""
GRACE = 12
"""How long an item that is told to end at its limit may take for it: ampbench stores what it has."""
LOG_BYTES = 200_000
"""As much is kept of the end of what an item printed."""
PACKED_BYTES = 15 << 20
"""A packed part is at most so large: its largest files are left out, and named."""


class NotHereError(Exception):
    """Raised by an item that says nothing here, with the reason: it is `NOT_RUN`."""


@dataclass(frozen=True, slots=True)
class Given:
    """What an item is given beside its own arguments; `seconds` are those it has, `folder` is that of its part."""

    device: str
    folder: Path
    quick: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Found:
    """What an item found: whether all is as it should be, that in a sentence, and a table of what is worth one."""

    passed: bool
    said: str
    headers: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()


@dataclass(slots=True)
class Row:
    """What came of an item, as it is stored; `planned` and `limit` are the item's.

    `seconds` are those of the clock, `cpu_seconds` those of all processors, which a busy machine changes less.
    """

    item: str
    proves: str
    outcome: str
    said: str
    seconds: float | None = None
    cpu_seconds: float | None = None
    limit: float = 0
    planned: int = 0
    headers: Sequence[str] = ()
    table: Sequence[Sequence[str]] = field(default_factory=list)


def run_part(
    part: Part, device: str, folder: Path, *, quick: bool, patience: float = 1, paths: Sequence[Path] = (),
    tell: Callable[[str], None] = print,
) -> list[Row]:  # fmt: skip
    """Do a part's items in `folder`, and return a row for each; `paths` come first when their processes import.

    All limits are `patience` times as long, for a rehearsal on a machine that others use.
    """
    folder = folder.resolve()
    for name in ("runs", "logs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    began, rows = time.monotonic(), []
    stored = {
        "part": part.name,
        "proves": part.proves,
        "device": device,
        "quick": quick,
        "patience": patience,
        "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
    }
    unfit = ""
    for item in (MACHINE, *part.items):
        left = part.seconds * patience - PACKING - (time.monotonic() - began)
        if unfit or left < LEAST:
            why = unfit or f"no time was left of the part's {part.seconds * patience:.0f} s"
            row = Row(item.name, item.proves, NOT_RUN, why)
        else:
            row = run_item(item, Given(device, folder, quick, min(item.limit * patience, left)), part.name, paths)
            if item is MACHINE and row.outcome != PASSED:
                unfit = f"the machine is not ready: {row.said}"
        row.limit, row.planned = item.limit * patience, item.planned
        rows.append(row)
        stored |= {"seconds": round(time.monotonic() - began, 1), "items": [asdict(one) for one in rows]}
        _write(folder / f"part-{part.name}.json", json.dumps(stored, indent=1))
        write_summary(folder)
        took = "" if row.seconds is None else f", {row.seconds:.1f} s"
        tell(f"{part.name}: {row.item}: {row.outcome}{took}: {row.said}")
    return rows


def run_item(item: Item, given: Given, part: str, paths: Sequence[Path] = ()) -> Row:
    """Do an item in a process of its own, and return what came of it; what it printed is in `logs/`."""
    name = f"{part}-{item.name}".replace(" ", "-").replace("%", "pct")
    log, answer = given.folder / "logs" / f"{name}.txt", given.folder / f".{name}.json"
    answer.unlink(missing_ok=True)
    asked = {**item.asked, **(item.quick if given.quick else {})}
    command = [sys.executable, "-m", "benchmarks.device.running", item.does, json.dumps(asked), str(answer)]
    command += [given.device, str(given.folder), str(int(given.quick)), str(given.seconds)]
    search = [str(ROOT), *map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(search), "PYTHONUNBUFFERED": "1"}
    began, used, late = time.monotonic(), _used(), False
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=variables,
                start_new_session=True,
            )  # fmt: skip
            process.wait(given.seconds)
        except subprocess.TimeoutExpired:
            late = True
            _end(process.pid)
            process.wait()
        except BaseException:  # ended from outside, maybe before the new process has a name here
            for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
                _end(int(pid))
            raise
    seconds, used = round(time.monotonic() - began, 1), round(_used() - used, 1)
    _shorten(log)
    try:
        found = json.loads(answer.read_text())
    except (OSError, ValueError):
        said = f"no answer, exit code {process.returncode}: {_last_line(log)}"
        found = {"outcome": FAILED, "said": said}
    finally:
        answer.unlink(missing_ok=True)
    if late:
        found = {"outcome": FAILED, "said": f"ended at its limit of {given.seconds:.0f} s: {_last_line(log)}"}
    return Row(
        item.name, item.proves, found["outcome"], found["said"], seconds, used,
        headers=found.get("headers", ()), table=found.get("table", []),
    )  # fmt: skip


def _used() -> float:
    """Return the CPU seconds of all processes that this one started, and that these did, which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _end(pid: int) -> None:
    """End an item and what it started: asked first, so that ampbench stores what it has and ends its servers."""
    deadline = time.monotonic() + GRACE
    for number in (signal.SIGTERM, signal.SIGKILL):
        for kill in (os.killpg, os.kill):  # the second where it has no group of its own yet
            with contextlib.suppress(ProcessLookupError):
                kill(pid, number)
        while number == signal.SIGTERM and time.monotonic() < deadline and _runs(pid):
            time.sleep(0.05)


def _runs(pid: int) -> bool:
    """Return whether a process is there and has not ended (proc(5), stat: a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _shorten(log: Path) -> None:
    text = log.read_bytes()
    if len(text) > LOG_BYTES:
        log.write_bytes(b"(the beginning is left out)\n" + text[-LOG_BYTES:])


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def _write(path: Path, text: str) -> None:
    """Write a file whole: a part that is killed meanwhile leaves the earlier one."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(text + "\n", encoding="utf-8")
    beside.replace(path)


def stored_parts(folder: Path) -> list[dict[str, Any]]:
    """Return what is stored of the parts in a folder, in the order of `EVERY`."""
    found = [folder / f"part-{name}.json" for name in EVERY]
    return [json.loads(path.read_text(encoding="utf-8")) for path in found if path.exists()]


def write_summary(folder: Path) -> None:
    """Write `summary.json` and `summary.md` of all parts in a folder."""
    parts = stored_parts(folder)
    _write(folder / "summary.json", json.dumps({"parts": parts, "counts": counts(parts)}, indent=1))
    _write(folder / "summary.md", summary(parts))


def counts(parts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many items passed, failed and were not run."""
    outcomes = [item["outcome"] for part in parts for item in part["items"]]
    return {outcome: outcomes.count(outcome) for outcome in (PASSED, FAILED, NOT_RUN)}


def summary(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return the summary of parts as Markdown: what came of each item and why, the time it took, and the tables."""
    found = counts(parts)
    lines = ["# Proof for an accelerator", "", ", ".join(f"{count} {outcome}" for outcome, count in found.items()), ""]
    if any(part["device"] == "cpu" for part in parts):
        lines += ["**A rehearsal: the device was the CPU. Nothing here says that an accelerator works.**", ""]
    if any(part["quick"] for part in parts):
        lines += ["With `--quick`: small presets, fewer steps and blocks.", ""]
    if most := max((part["patience"] for part in parts if part["patience"] != 1), default=None):
        lines += [f"With `--patience {most:g}`: limits so many times as long.", ""]
    ran = [part["part"] for part in parts]
    missing = [name for name in EVERY if name not in (CARD.name, *ran)]
    if missing and CARD.name not in ran:
        lines += [f"Parts not run: {', '.join(missing)}.", ""]
    tables = []
    for part in parts:
        planned = sum(item["planned"] for item in part["items"])
        lines += [
            f"## {part['part']}: {part['proves']}", "",
            f"Device {part['device']}, begun {part['began']}, {part['seconds']:.0f} s (planned: {planned} s).", "",
            "| item | outcome | seconds | CPU seconds | planned | limit | what came of it |",
            "|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        for item in part["items"]:
            took = ("" if value is None else f"{value:.0f}" for value in (item["seconds"], item["cpu_seconds"]))
            cells = (item["item"], item["outcome"], *took, item["planned"], f"{item['limit']:.0f}", item["said"])
            lines.append("| " + " | ".join(map(_cell, cells)) + " |")
            if item["table"]:
                tables += ["", f"## {part['part']}, {item['item']}: {item['proves']}", "", *_table(item)]
        lines.append("")
    return "\n".join([*lines, *tables])


def _table(item: Mapping[str, Any]) -> list[str]:
    rows = [item["headers"], ["---"] * len(item["headers"]), *item["table"]]
    return ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def pack(folder: Path, file: Path, most: int = PACKED_BYTES) -> list[str]:
    """Pack a folder into one tar.gz of at most `most` bytes; return what was left out for that, the largest first."""
    files = sorted((path for path in folder.rglob("*") if path.is_file() and path != file), key=_size)
    left_out: list[str] = []
    while True:
        with tarfile.open(file, "w:gz") as packed:
            for path in files:
                packed.add(path, path.relative_to(folder).as_posix())
        if file.stat().st_size <= most or not files:
            return left_out
        left_out.append(files.pop().relative_to(folder).as_posix())


def _size(path: Path) -> int:
    return path.stat().st_size


def gather(packed: Iterable[Path], folder: Path) -> None:
    """Unpack the tar.gz files of several parts into one folder, and write the summary of them all."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in packed:
        with tarfile.open(file) as held:
            held.extractall(folder, filter="data")
    write_summary(folder)


def do(does: str, asked: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """Do an item in this process, and return what is stored of it; nothing that it raises passes on."""
    module, _, name = does.partition(":")
    try:
        found: Found = getattr(importlib.import_module(module), name)(given, **asked)
    except NotHereError as absent:
        return {"outcome": NOT_RUN, "said": str(absent)}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what came of the item
        traceback.print_exc()
        text = " ".join(str(error).split())
        return {"outcome": FAILED, "said": f"{type(error).__name__}: {text[:300]}"}
    outcome = PASSED if found.passed else FAILED
    table = [[str(cell) for cell in row] for row in found.table]
    return {"outcome": outcome, "said": found.said, "headers": list(found.headers), "table": table}


if __name__ == "__main__":
    from benchmarks.device import running  # what items raise is of the module by that name, not of __main__

    _does, _asked, _answer, _device, _folder, _quick, _seconds = sys.argv[1:]
    _given = running.Given(_device, Path(_folder), _quick == "1", float(_seconds))
    Path(_answer).write_text(json.dumps(running.do(_does, json.loads(_asked), _given)))
