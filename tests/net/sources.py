"""What the net is held under: stored runs, pairs of them, histories; and where the data of each is kept.

The runs in `runs/` are small ones of the real program, one of each kind, but for those called `scripted-…`: they were
never measured. Their records were made up by a script that is not kept, and written by ampbench's own writer, to fill
what no measured run has: `cuda` and `xpu`, and what only an accelerator tells; every precision, path and backend of
attention; ceilings; recipes; a table for each column that can decide on a precision; a later run in which something of
nearly each table is otherwise; arms of sessions, one with a control that fired (`fired`); numbers of another program
(`import`). They are data like the others.
"""

import gzip
import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.net import adapter
from tests.net.plain import Tables

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUNS, DATA = HERE / "runs", HERE / "data"
MEASURED = ROOT / "results" / "runs"

POLICIES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "time": {"only": ("time",)},
    "memory": {"only": ("memory",)},
    "accuracy": {"only": ("accuracy",)},
    "rules": {"only": ("rules",)},
    "all decided": {"min_decided": 1.0},
    "time within 50%": {"only": ("time",), "thresholds": {"time": 0.5}},
    "nothing may change": {"thresholds": {"time": 0.0, "memory": 0.0, "accuracy": 0.0}},
}
"""Policies of gates, as settings of `Policy`."""
SCRIPTED_POLICIES: Mapping[str, Mapping[str, Any]] = {
    **POLICIES,
    "of a file": {"file": HERE / "policy.toml"},
    "half decided": {"min_decided": 0.5},
}
"""Those of the pairs on scripted devices."""
SCRIPTED = ("cuda", "xpu", "ab", "fired", "import")
"""Runs on scripted devices of which there is a later one, or another arm, too."""


def _id(day_and_time: str) -> str:
    return next(MEASURED.glob(f"{day_and_time}*")).name


FORWARD = ("20261121T050644Z", "20261121T050808Z", "20261121T050931Z", "20261121T051055Z", "20261121T051219Z")
BACKWARD = ("20261121T051344Z", "20261121T051509Z", "20261121T051635Z", "20261121T051801Z", "20261121T051926Z")
"""The default suite on five versions of torch, there and back."""
MINORS = ("11", "12", "13", "14", "15")


def stored_runs() -> dict[str, Path]:
    """Return every stored run, by the name of its data."""
    files = [
        file for folder in (RUNS, ROOT / "results") for end in ("", ".gz") for file in folder.rglob(f"*.jsonl{end}")
    ]
    chosen = [file for file in sorted(files) if not any(part.startswith(".") for part in file.relative_to(ROOT).parts)]
    names = ["-".join(file.relative_to(ROOT).parts).split(".jsonl")[0] for file in chosen]
    return dict(zip(names, chosen, strict=True))


def pairs() -> dict[str, tuple[Path, Path]]:
    """Return the pairs that are compared, by the name of their data."""
    small = [
        ("plain", "later"), ("later", "plain"), ("plain", "plain"), ("ab-baseline", "ab-candidate"),
        ("ab-candidate", "ab-baseline"), ("casts", "casts"), ("headroom", "headroom"), ("plain", "ab-baseline"),
    ]  # fmt: skip
    found = {f"{base}--{new}": (RUNS / f"{base}.jsonl", RUNS / f"{new}.jsonl") for base, new in small}
    for name in SCRIPTED:
        files = [RUNS / f"scripted-{name}{later}.jsonl.gz" for later in ("", "-later")]
        found |= {f"scripted-{name}--later": (files[0], files[1]), f"scripted-{name}-later--": (files[1], files[0])}
    history = (*FORWARD, *BACKWARD)
    ends = [*itertools.pairwise(history), (history[0], history[-1]), ("20261121T031846Z", history[0])]
    found |= {f"{base}--{new}": (MEASURED / _id(base), MEASURED / _id(new)) for base, new in ends}
    for older, newer in itertools.pairwise(MINORS):
        for kind in ("rules", "checks"):
            files = [next((ROOT / "results" / kind).glob(f"torch-2.{minor}.*")) for minor in (older, newer)]
            found[f"{kind}-2.{older}--2.{newer}"] = (files[0], files[1])
    atlas = sorted((ROOT / "results" / "atlas" / "runs").glob("*.jsonl.gz"))
    found["atlas-first--second"] = (atlas[0], atlas[1])
    found["demo--default"] = (next((ROOT / "results" / "demo" / "runs").glob("*.jsonl")), MEASURED / _id(FORWARD[-1]))
    return found


def histories() -> dict[str, list[Path]]:
    """Return the histories that are followed, by the name of their data."""
    return {"history": [MEASURED / _id(each) for each in (*FORWARD, *BACKWARD)]}


def computed(only: Iterable[str] = ()) -> dict[str, Tables]:
    """Return what ampbench makes of all of them, or of those with the names in `only`, by the name of their data."""
    wanted = set(only)
    found = {}
    for name, file in stored_runs().items():
        if not wanted or name in wanted:
            found[name] = adapter.of_run(file)
    for name, (baseline, candidate) in pairs().items():
        if not wanted or name in wanted:
            policies = SCRIPTED_POLICIES if name.startswith("scripted") else POLICIES
            found[name] = adapter.of_pair(baseline, candidate, policies)
    for name, files in histories().items():
        if not wanted or name in wanted:
            found[name] = adapter.of_history(files)
    return found


def kept() -> dict[str, Tables]:
    """Return the data that was kept, by its name."""
    files = sorted(DATA.glob("*.json.gz"))
    return {file.name.removesuffix(".json.gz"): json.loads(gzip.decompress(file.read_bytes())) for file in files}


def keep(name: str, tables: Tables) -> None:
    """Write the data of a new run, pair or history; `FileExistsError` where there is some: data is never made anew."""
    content = gzip.compress(json.dumps(tables, separators=(",", ":")).encode(), compresslevel=9, mtime=0)
    with (DATA / f"{name}.json.gz").open("xb") as file:
        file.write(content)
