"""What every verb prints and every page says of stored runs, equal to the byte with what is kept in `expected/`.

The runs in `runs/` are small ones of the real program, one of each kind; each is read in a results folder of its own,
some in one with others. To renew what is expected: `RENEW=1 pytest tests/golden`, with `-k PATTERN` to renew some.
A commit that changes a file in `expected/` says why.

Nothing here may depend on ampbench's modules but on its entry: these tests stand while they move.

Held still are numbers beyond their twelfth digit, which differ between processors, and of HTML pages what is no text of
theirs: styles, scripts, drawings (their specifications and data are kept) and the blanks between tags.
"""

import base64
import contextlib
import difflib
import gzip
import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ampbench.cli.main import main

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"
RENEW = bool(os.environ.get("RENEW"))

RUNS, STORED = HERE / "runs", HERE.parents[1] / "results"
HISTORY = [
    "runs/20261121T050644Z-vm-016a7e.jsonl", "runs/20261121T050808Z-vm-4db4fe.jsonl",
    "runs/20261121T050931Z-vm-88b220.jsonl", "runs/20261121T051055Z-vm-7ad613.jsonl",
    "runs/20261121T051219Z-vm-7a3f2e.jsonl",
]  # fmt: skip
"""Runs of five versions of torch, of the default suite."""
MEASURED = ("plain",)
EXPLAINING = (
    "casts", "headroom", "origin", "keep-fp32", "rules", "convergence", "scaler", "scope", "input-storage", "batch",
    "ceilings", "check",
)  # fmt: skip
FOLDERS: dict[str, list[Path]] = {
    **{name: [RUNS / f"{name}.jsonl"] for name in (*MEASURED, *EXPLAINING)},
    "pair": [RUNS / "plain.jsonl", RUNS / "later.jsonl"],
    "arms": [RUNS / "ab-baseline.jsonl", RUNS / "ab-candidate.jsonl"],
    "whole": [RUNS / f"{name}.jsonl" for name in (*MEASURED, *EXPLAINING) if name != "rules"],
    "history": [STORED / name for name in HISTORY],
    "probes": [STORED / f"rules/torch-2.{minor}.0.jsonl.gz" for minor in (14, 15)],
}
"""Results folders by name: the runs in each."""
VERBS = (
    "run", "list", "show", "compare", "ab", "gate", "trend", "query", "merge", "report", "explain", "study", "check",
    "convert", "doctor",
)  # fmt: skip
SUBVERBS = {
    "explain": ("casts", "headroom", "origin", "keep-fp32", "rules"),
    "study": ("convergence", "scaler", "scope", "input-storage", "batch", "ceilings"),
}
PAGE = "page.html"


@dataclass(frozen=True)
class Output:
    """A command line in one of the `FOLDERS`, or in an empty one, and how many columns it may use."""

    arguments: str
    folder: str = ""
    columns: int = 100


def _outputs() -> dict[str, Output]:
    """Return what is printed, by the name of the file in `expected/` that has it."""
    found = {"help/ampbench.txt": Output("--help"), "help/first-steps.txt": Output("")}
    for verb in VERBS:
        found[f"help/{verb}.txt"] = Output(f"{verb} --help")
        for name in SUBVERBS.get(verb, ()):
            found[f"help/{verb}-{name}.txt"] = Output(f"{verb} {name} --help")
    for what in ("workloads", "precisions", "runs"):
        found[f"list/{what}.txt"] = Output(f"list {what}", "whole")
        found[f"list/{what}.json"] = Output(f"list {what} --json", "whole")
    for run in (*MEASURED, *EXPLAINING):
        name = f"{'show' if run in MEASURED else 'explained'}/{run}"
        for columns in (80, 100, 160):
            found[f"{name}-{columns}.txt"] = Output("show RUN", run, columns)
        found[f"{name}-all.txt"] = Output("show RUN --all", run)
        found[f"{name}.md"] = Output("show RUN --format markdown", run)
        found[f"{name}.csv"] = Output("show RUN --format csv", run)
        found[f"{name}.json"] = Output("show RUN --format json", run)
    found["explained/rules.json"] = Output("explain rules RUN --op softmax --json", "rules")
    for run in (*MEASURED, *EXPLAINING, "whole"):
        asked = "" if run == "whole" else " RUN"
        found[f"report/{run}.html"] = Output(f"report{asked} -o {PAGE}", run)
        found[f"report/{run}.md"] = Output(f"report{asked} --format markdown", run)
    for form in ("txt", "json", "md", "csv"):
        format = {"txt": "table", "md": "markdown"}.get(form, form)
        found[f"two/compare.{form}"] = Output(f"compare plain later --format {format}", "pair")
        found[f"two/compare-arms.{form}"] = Output(f"compare ab-baseline ab-candidate --format {format}", "arms")
        found[f"two/beside.{form}"] = Output(f"show plain later --format {format}", "pair")
        found[f"two/gate.{form}"] = Output(f"gate plain later --format {format} -k mlp", "pair")
        found[f"trend/trend.{form}"] = Output(f"trend --format {format} -k mlp", "history")
    found["two/compare-all.txt"] = Output("compare plain later --all", "pair")
    found["two/compare-arms-all.txt"] = Output("compare ab-baseline ab-candidate --all", "arms")
    found["two/gate-arms.txt"] = Output("gate ab-baseline ab-candidate", "arms")
    found["list/checks.txt"] = Output("check --list")
    found["two/rules.txt"] = Output("explain rules torch-2.15.0 --against torch-2.14.0", "probes")
    found["trend/trend-all.txt"] = Output("trend --x date --all -k mlp", "history")
    found["trend/report.md"] = Output("report results --format markdown", "history")
    found["report/against.html"] = Output(f"report later --baseline plain -o {PAGE}", "pair")
    found["report/against.md"] = Output("report later --baseline plain --format markdown", "pair")
    found["report/arms.html"] = Output(f"report ab-candidate --baseline ab-baseline -o {PAGE}", "arms")
    found["report/arms.md"] = Output("report ab-candidate --baseline ab-baseline --format markdown", "arms")
    for name in ("junit", "github-smaller", "bencher", "otava", "pytest-benchmark"):
        found[f"convert/{name}.txt"] = Output(f"convert RUN --to {name} -k mlp", "plain")
    return found


OUTPUTS = _outputs()


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `FOLDERS`, each with its runs under their own ids, and an empty one."""
    root = tmp_path_factory.mktemp("golden")
    (root / "empty").mkdir()
    for name, files in FOLDERS.items():
        runs = root / name / "results" / "runs"
        runs.mkdir(parents=True)
        for file in files:
            shutil.copyfile(file, runs / (f"{_run_id(file)}.jsonl" if file.parent == RUNS else file.name))
    return root


def _run_id(file: Path) -> str:
    """Return the id of a run, by its header."""
    with file.open(encoding="utf-8") as lines:
        found: str = json.loads(next(lines))["header"]["run"]
    return found


def _words(output: Output) -> list[str]:
    """Return a command line in which a run is called by its id, not as RUN or by the name of its file."""
    files = {file.stem: file for file in FOLDERS.get(output.folder, ()) if file.parent == RUNS}
    if output.folder in files:
        files["RUN"] = files[output.folder]
    verb, *words = output.arguments.split() or [""]
    if verb in SUBVERBS:
        files = {word: file for word, file in files.items() if word == "RUN"}  # the others are the verb's own verbs
    return [word for word in (verb, *(_run_id(files[word]) if word in files else word for word in words)) if word]


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what a shell may say of how to print."""
    for name in ("FORCE_COLOR", "NO_COLOR", "LINES", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", OUTPUTS)
def test_what_is_printed_is_what_is_expected(name: str, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = OUTPUTS[name]
    monkeypatch.chdir(folders / (output.folder or "empty"))
    monkeypatch.setenv("COLUMNS", str(output.columns))
    said, file = _printed(_words(output)), EXPECTED / name
    if RENEW:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(said.encode())
    expected = file.read_bytes().decode() if file.is_file() else ""
    if said != expected:
        diff = difflib.unified_diff(_lines(expected), _lines(said), "expected", "printed", lineterm="")
        told = f"ampbench {output.arguments} (expected/{name}; if it is meant so: RENEW=1 pytest tests/golden)"
        pytest.fail(f"{told}:\n" + "\n".join(diff), pytrace=False)


def test_every_file_that_is_expected_is_compared() -> None:
    kept = {str(file.relative_to(EXPECTED)) for file in EXPECTED.rglob("*") if file.is_file()}
    assert kept - OUTPUTS.keys() == set()


def test_no_file_tells_of_the_machine_that_it_was_made_on() -> None:
    told = re.compile(r"/(work|tmp|root|home|Users|opt)/")
    files = [file for file in (RUNS, EXPECTED) for file in file.rglob("*") if file.is_file()]
    assert [str(file) for file in files if told.search(file.read_text(encoding="utf-8"))] == []


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "␍\n").split("\n")


def _printed(words: list[str]) -> str:
    """Return what a command line prints: stdout, or the page that it writes; then stderr and a code that is not 0."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    said = out.getvalue()
    if PAGE in words:
        assert said == f"{PAGE}\n"
        said = "\n".join(_page(Path(PAGE).read_text(encoding="utf-8")))
    if err.getvalue():
        said += f"\n--- stderr ---\n{err.getvalue()}"
    if code:
        said += f"\n--- exit code {code} ---\n"
    return _LONG.sub(lambda number: f"{float(number[0]):.12g}", said)


_LONG = re.compile(r"(?<![\w.])\d+\.\d{9,}(?:e[+-]\d+)?(?!\w)")
"""A number with more digits than two processors agree on."""
_BLOCK = re.compile(
    r"(?=<(?:section|h\d|p|div|table|caption|thead|tbody|tr|ul|ol|li|dl|dt|dd|details|summary|figure|figcaption|pre|nav)\b)"
)


def _page(page: str) -> Iterator[str]:
    """Yield the lines of a page's text with its tags, an element of a block on each; then its charts and their data."""
    title = re.search("<title>(.*?)</title>", page, re.DOTALL)
    assert title is not None
    yield title[0]
    body = page[page.index("<nav") : page.index("</main>")]
    body = re.sub(r'<svg role="img"[^>]*?(aria-label="[^"]*")[^>]*>.*?</svg>', r"<svg \1/>", body, flags=re.DOTALL)
    parts = re.split("(<pre.*?</pre>)", body, flags=re.DOTALL)
    for part in parts:
        if part.startswith("<pre"):
            yield part
        else:
            for line in _BLOCK.split(part):
                if held := " ".join(line.split()):
                    yield held
    packed = re.search('id="payload">([^<]*)<', page)
    if packed is None:
        return
    payload = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    for chart, told in payload["charts"].items():
        told["spec"].pop("config", None)
        yield f"chart {chart}: {json.dumps(told, ensure_ascii=False)}"
    for dataset, columns in payload["datasets"].items():
        for column, values in columns.items():
            yield f"data {dataset}.{column}: {json.dumps(values, ensure_ascii=False)}"
