"""Rewrite every stored run of this repository in today's form, once: schema 7, each of today's fields written out.

Run `python rewrite_stored_runs.py`. A run that would be read as anything else than before is left, and named. Headers
say what was asked for in the fields of the record that their kind names. What only says that features were not used
which are about to go is left out.
"""

import gzip
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ampbench.instruments.keep_fp32.records import SearchSpace
from ampbench.records.run import SCHEMA, Header
from ampbench.store import StoredRun, lines, read_run

GOING = {("header", "settings", "heap"): "kept", ("memory", "average_bytes"): None, ("header", "asked", "schedule"): ""}


def without_going(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line without the fields of features that go, where they say that these were not used."""
    for (*way, name), unused in GOING.items():
        held: Any = line
        for step in way:
            held = held.get(step) if isinstance(held, dict) else None
        if isinstance(held, dict) and name in held and held[name] == unused:
            del held[name]
    return line


def asked_of(stored: StoredRun) -> Any:
    """Return what a run was asked for; what a search was for stood in its space."""
    asked = stored.asked
    for space in stored.of(SearchSpace).values():
        asked = asked or space.wanted
    return asked


def header_of(stored: StoredRun) -> Header:
    """Return the header of a run in today's form."""
    asked = asked_of(stored)
    return replace(stored.header, schema=SCHEMA, asked=None if asked is None else msgspec.to_builtins(asked))


def rewritten(path: Path, stored: StoredRun) -> bytes:
    """Return what the file of a run is to hold."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        old = file.readlines()
    records = [header_of(stored), *(lines.to_record(*lines.decode(line)) for line in old[1:])]
    plain = (without_going(msgspec.json.decode(lines.encode(record))) for record in records)
    data = b"".join(msgspec.json.encode(line) + b"\n" for line in plain)
    return gzip.compress(data, mtime=0) if path.suffix == ".gz" else data


def main() -> int:
    """Rewrite the runs, and return 1 where one could not be."""
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    wrong = 0
    for path in (Path(name) for name in listed if name.endswith((".jsonl", ".jsonl.gz"))):
        before, whole = read_run(path, check_traces=True), path.read_bytes()
        path.write_bytes(rewritten(path, before))
        after = read_run(path, check_traces=True)
        header = replace(header_of(before), asked=after.header.asked)
        if repr(after) != repr(replace(before, header=header)) or after.asked != asked_of(before):
            path.write_bytes(whole)
            print(f"left as it is: {path}")
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
