"""The sections of a page: the answer, why, then numbers; with the tables and sentences of the terminal."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec

from ampbench.core.precisions import BASELINE, PRECISIONS, ordered
from ampbench.core.units import all_of, counted, format_percent
from ampbench.judge import frame, notes
from ampbench.judge.machines import networks as on_machines
from ampbench.judge.machines import told_apart
from ampbench.judge.rounds import control_ratio
from ampbench.records.kinds import KINDS, Kind
from ampbench.records.labels import (
    NOT_REACHED,
    case_labels,
    common_traits,
    few,
    outcome_said,
    outcomes_said,
)
from ampbench.records.labels import told_apart as names_apart
from ampbench.records.run import short_commit
from ampbench.report.material import Material
from ampbench.show import studies
from ampbench.show.charts import Chart, Rows, speed_layers, speed_points
from ampbench.show.comparison import comparison_section, verdict
from ampbench.show.comparison import warnings as doubts
from ampbench.show.document import Block, as_sentence, cut
from ampbench.show.networks import (
    Network,
    brought,
    heading,
    missing,
    side_by_side,
    tables,
)
from ampbench.show.page import Held, Part, Told, Untold, fit, place_of, run_name
from ampbench.show.results import COLUMNS, Column, dotted, machine, metric_column
from ampbench.show.rows import Row, precision_label
from ampbench.show.wording import answer, lines, verdict_words, words
from ampbench.store import CUT, StoredRun
from ampbench.studies.study import study_of
from ampbench.trend import moment

AT_ONCE = 25
"""The number of rows of a table of networks that are not folded."""
MOST = 1_000
"""The most rows of a table of networks."""
NAMED = 3
"""The number of runs that are named where several have the same note."""
FURTHER = (
    "speedup_vs_tf32", "speedup_vs_default", "energy_per_step", "ceiling_share", "busy_share", "argmax_agreement",
    "grad_rel_l2",
)  # fmt: skip
"""Further metrics of cases, shown after the deciding ones where any case has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A section of the page, called `title` in the navigation: its `warnings`, then its `parts`.

    A view with a `heading` leads the page. The rows called `sortable` ("cases") can be sorted and searched.
    """

    id: str
    title: str
    heading: str = ""
    warnings: Sequence[str] = ()
    parts: Sequence[Part] = ()
    sortable: str = ""

    @property
    def charts(self) -> list[Chart]:
        """The charts of all parts."""
        return [chart for part in self.parts for chart in part.charts]

    @property
    def datasets(self) -> Mapping[str, Rows]:
        """The rows of the charts, by the names of datasets."""
        return {name: rows for part in self.parts for name, rows in part.datasets.items()}


def result(material: Material) -> View:
    """Return the answer: the precisions to take or the changes, its weaknesses, and the cases without a result."""
    sections = map(comparison_section, material.comparisons)
    parts = [
        Part(id=f"comparison-{place}", title=section.title, blocks=list(map(cut, section.blocks)))
        for place, section in enumerate(sections)
    ]
    lost = missing(material.rows)
    if lost.rows:
        parts.append(Part(id="missing", title="", blocks=[replace(lost, folded=True)]))
    return View(id="result", title="Result", heading=_heading(material), warnings=_warnings(material), parts=parts)


def _heading(material: Material) -> str:
    """Return the answer in a line: the changes, the precisions to take, or the first finding of a study."""
    if material.comparisons:
        return as_sentence(verdict(*material.comparisons)).removesuffix(".")
    if networks := material.networks:
        headers = dict.fromkeys(
            " · ".join(filter(None, machine(run.stored.header, network.rows[0]["device"])))
            for run in material.shown
            for network in run.networks
        )
        where = next(iter(headers)) if len(headers) == 1 else f"{len(headers)} devices"
        return f"{where}: {heading(networks)}"
    finding = next((part.finding for part in study_parts(material) if part.finding), "")
    if finding and not material.rows:
        return finding
    outcomes = Counter(row["outcome"] for row in material.rows)
    for run in material.explanations:
        outcomes.update(failed=len(run.failures), skipped=len(run.skips))
    text = all_of(contents(material)) or outcomes_said(outcomes) or "there are no cases"
    return f"Nothing was measured: {text}"


def _warnings(material: Material) -> list[str]:
    """Return notes that change a decision, each once and, with several runs, behind the runs' names."""
    rows = material.rows
    failed = sum(row["outcome"] == "failed" for row in rows)
    texts = [f"{failed:,} of {counted(len(rows), 'case')} failed"] if failed else []
    texts += [text for comparison in material.comparisons for text in doubts(comparison)]
    ended = [run.stored for run in material.shown if not material.comparisons and not run.stored.complete]
    texts += [f"run {stored.header.run} is not complete: {stored.ending}" for stored in ended]
    sides: dict[str, list[str]] = {}
    if material.baseline is not None and material.shown:
        rows = [row for row in frame.run_rows(material.baseline) if row["outcome"] != "skipped"]
        noted = notes.statements(material.baseline, rows)
        sides["baseline"] = lines(noted, material.baseline.cases, everything=False)
    for run in material.shown:
        noted = run.result.notes([row for row in run.rows if row["outcome"] != "skipped"])
        name = run.name if len(material.shown) > 1 else "candidate"
        sides.setdefault(name, []).extend(lines(noted, run.stored.cases, everything=False))
    owners: dict[str, list[str]] = {}
    for name, lines_of_side in sides.items():
        for text in lines_of_side:
            owners.setdefault(text, []).append(name)
    texts += [text if len(runs) == len(sides) else f"{few(runs, NAMED)}: {text}" for text, runs in owners.items()]
    names = {run.name for run in material.shown}
    return [as_sentence(text, names) for text in dict.fromkeys([*texts, *material.remarks])]


def networks(material: Material) -> View | None:
    """Return the precision to take of each network and why, and each precision's gain; None without a measurement."""
    measured = material.networks
    if not measured:
        return None
    hosts = {(run.stored.header.environment.host, run.stored.header.environment.cpu) for run in material.shown}
    if len(hosts) > 1:
        machines = told_apart([(run.stored, run.rows, run.result.takes) for run in material.shown])
        measured = on_machines(machines)
        document = side_by_side([machine.place for machine in machines], measured, ())
        blocks = [block for section in document.sections() for block in section.blocks]
    else:
        blocks = tables(measured)
    blocks = [part for block in blocks for part in _folding(block)]
    if (means := brought(measured)).rows:
        blocks.append(means)
    if len(measured) <= AT_ONCE:
        sentences = [(_name(network), _why(network)) for network in material.networks]
        blocks.append(Block("why, in sentences", ["network", "why"], sentences, folded=True))
    return View(id="networks", title="Networks", parts=[Part(id="table", title="", blocks=blocks)])


def _name(network: Network) -> str:
    return f"{network.name} {network.rows[0]['phase']}"


def _why(network: Network) -> str:
    """Return in sentences which precision of a network to take, why, and the remedies."""
    return "; ".join([answer(network.take.statement), *map(words, network.take.hints)])


def _folding(block: Block) -> list[Block]:
    """Return a table as its first rows and, folded away, the others as far as a page has room."""
    first, hidden = block.rows[:AT_ONCE], cut(replace(block, rows=block.rows[AT_ONCE:]), MOST)
    more = [replace(hidden, title=f"{len(block.rows) - AT_ONCE:,} more", folded=True)] if hidden.rows else []
    return [replace(block, rows=first), *more]


def explanation(material: Material) -> View | None:
    """Return the studies of the runs; None without any."""
    parts = study_parts(material)
    return View(id="explanation", title="Why", parts=parts) if parts else None


def cases(material: Material) -> View | None:
    """Return a table of every case that was measured or failed; None without any."""
    pairs = [(run, row) for run in material.shown for row in run.rows if row["outcome"] != "skipped"]
    if not pairs:
        return None
    measured = [row for _, row in pairs if row["outcome"] == "ok"]
    known = [*COLUMNS[1:-1], *map(metric_column, FURTHER)]
    columns = [column for column in known if any(any(column.cell(row)) for row in measured)]
    heads = [column.head for column in columns]
    of_runs = [run.stored.cases[row["case_id"]] for run, row in pairs]
    labels = case_labels(of_runs, precision=False)
    several = len(material.shown) > 1
    block = Block(
        " · ".join(filter(None, [counted(len(pairs), "case"), common_traits(of_runs)])),
        ["case", *(["run"] if several else []), "precision", *heads, "verdict"],
        [
            [
                labels[row["case_id"]],
                *([run.name] if several else []),
                precision_label(row),
                *(_cell(column, row) for column in columns),
                verdict_words(row) if row["outcome"] == "ok" else outcome_said(row["outcome"], row["reason"]),
            ]
            for run, row in pairs
        ],
        "speed and memory times fp32's, with 95% intervals; error against fp64",
        numbers=heads,
    )
    return View(id="cases", title="Cases", parts=[Part(id="table", title="", blocks=[block])], sortable="cases")


def _cell(column: Column, row: Row) -> str:
    """Return the cell of a measured row: "1.77x (1.73–1.80)"."""
    if row["outcome"] != "ok":
        return ""
    text, behind = column.cell(row)
    return f"{text} ({behind})" if behind else text


def tradeoff(material: Material) -> View | None:
    """Return the chart of speed against error; None where no case has both."""
    named = [
        (f"{fit(network.name)} {network.rows[0]['phase']}", row)
        for network in material.networks
        for row in network.rows
        if row["outcome"] == "ok" and row["precision"] != BASELINE
    ]
    points = speed_points(named)
    if not points:
        return None
    right = [point for point in points if not point["wrong"]]
    words = f"{counted(len(points), 'case')}; a cross: refused or undecided."
    if right:
        best = max(right, key=lambda point: float(point["speed"]))
        facts = f"{best['speed_text']}, error {best['error_text']}"
        words += f" The fastest that is ok is {best['table']} {best['precision']}: {facts}."
    layers = {"layer": speed_layers(points, material.budget.output_rel_l2)}
    chart = Chart(id="tradeoff", title="Speed against error", alt=words, spec=layers, dataset="tradeoff")
    part = Part(id="plane", title="", charts=[chart], datasets={"tradeoff": points})
    return View(id="tradeoff", title="Trade-off", parts=[part])


def environment(material: Material) -> View | None:
    """Return where, when and with what versions each run was measured; None where there is no run."""
    runs = [*([material.baseline] if material.baseline else []), *material.runs]
    if not runs:
        return None
    known = {name: precision.summary for name, precision in PRECISIONS.items()}
    known |= {precision.name: precision.summary for run in runs for precision in run.header.precisions}
    present = [(name, known[name]) for name in ordered(row["precision"] for row in material.rows) if known.get(name)]
    blocks = [
        runs_block([{"run": run_name(run), **run_facts(run)} for run in runs]),
        *([Block("what the precisions are", ["precision", "summary"], present, folded=True)] if present else []),
        *(
            Block(
                f"all that is recorded of {run_name(run)}",
                ["fact", "value"],
                list(dotted("", msgspec.to_builtins(run.header))),
                folded=True,
            )
            for run in runs
        ),
    ]
    return View(id="environment", title="Environment", parts=[Part(id="runs", title="", blocks=blocks)])


def runs_block(entries: Sequence[Mapping[str, str]]) -> Block:
    """Return the table of runs, without the columns that are empty in all of them."""
    heads = [head for head in entries[0] if any(entry[head] for entry in entries)]
    return Block("times in UTC", heads, [[entry[head] for head in heads] for entry in entries])


def run_facts(stored: StoredRun) -> dict[str, str]:
    """Return where, when and with what versions a run was measured, and how it went."""
    header, environment = stored.header, stored.header.environment
    rows = [] if header.explains else frame.run_rows(stored)
    devices = notes.measured_devices(rows)
    control = control_ratio(stored) if rows else None
    outcomes = Counter(row["outcome"] for row in rows)
    return {
        "began": f"{moment(header.started_at):%Y-%m-%d %H:%M}",
        "ended": " · ".join(filter(None, [stored.ending, CUT if stored.cut else ""])),
        "host": environment.host,
        "device": few(machine(header, device)[0] for device in devices) or environment.cpu,
        "torch": environment.torch_version,
        "commit": short_commit(header.commit) if header.commit else "",
        "cases": outcomes_said(outcomes),
        "rounds": f"{len(stored.rounds):,}" if stored.rounds else "",
        "control": f"{format_percent(control.apart - 1)} apart" if control else "",
    }


@lru_cache(maxsize=1)
def study_parts(material: Material) -> list[Part]:
    """Return the parts of studies that found anything in the runs on the page, in the order of `KINDS`."""
    parts = (studies.part(study_of(kind.name), _held(material, kind)) for kind in KINDS.values())
    return [part for part in parts if part is not None]


def _held(material: Material, kind: Kind) -> Held[Any]:
    """Return the page's findings of the study of a kind of runs."""
    passes = _passes(material, kind) if kind.of_cases else []
    labels = case_labels(run.cases[case_id] for run, case_id, _ in passes)
    names = names_apart([labels[case_id] for _, case_id, _ in passes], (run_name(run) for run, _, _ in passes))
    measured = {place_of(run.stored) for run in material.shown}
    places = dict.fromkeys(place_of(run) for run, _, _ in passes) if measured else {}
    return Held(
        told=[
            Told(name=name, case=run.cases[case_id], run=run, found=record)
            for name, (run, case_id, record) in zip(names, passes, strict=True)
        ],
        untold=_untold(material, kind),
        elsewhere=[f"torch {torch} on {host}" for host, torch in places if (host, torch) not in measured],
        runs=material.runs,
    )


def _untold(material: Material, kind: Kind) -> list[Untold]:
    """Return the cases that runs of a kind failed to explain, skipped or did not finish."""
    known = {case_id for run in material.runs for case_id in studies.found_of(study_of(kind.name), run)}
    left: dict[str, Untold] = {}
    for run in material.explanations:
        labels = case_labels(run.cases.values()) if run.header.explains == kind.name else {}
        for case_id in [case_id for case_id in labels if case_id not in known]:
            skip, failure = run.skips.get(case_id), run.failures.get(case_id)
            reason = skip.reason if skip else failure.said if failure else NOT_REACHED
            left[case_id] = Untold(name=labels[case_id], reason=reason, case_id=case_id, run=run)
    return list(left.values())


def contents(material: Material) -> list[str]:
    """Return the title of an explaining page, such as "casts of 3 cases" or "ceilings of cpu"."""
    texts = []
    for kind in KINDS.values():
        names = dict.fromkeys(name for run in material.runs for name in studies.found_of(study_of(kind.name), run))
        which = counted(len(_passes(material, kind)), "case") if kind.of_cases else ", ".join(names)
        texts += [f"{kind.contents} {which}"] if names else []
    return texts


def _passes(material: Material, kind: Kind) -> list[tuple[StoredRun, str, Any]]:
    """Return the findings on the cases of the page, the newest of each case, host and torch version."""
    case_ids = {id(run.stored): {row["case_id"] for row in run.rows} for run in material.shown}
    newest: dict[tuple[str, str, str], tuple[StoredRun, str, Any]] = {}
    for run in material.runs:
        wanted = case_ids.get(id(run))
        for case_id, record in studies.found_of(study_of(kind.name), run).items():
            if wanted is None or case_id in wanted:
                newest[*place_of(run), case_id] = run, case_id, record
    return list(newest.values())
