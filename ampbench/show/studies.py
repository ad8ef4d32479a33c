"""The document of a run that explains or studies, by its `Study`, and the words of codes."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ampbench.core import by_key
from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.core.statement import Severity, Statement
from ampbench.core.units import counted
from ampbench.records.case import Case
from ampbench.records.kinds import KINDS
from ampbench.records.labels import NOT_REACHED, case_labels, common_traits, few
from ampbench.show import wording
from ampbench.show.document import (
    Block,
    Code,
    Document,
    Section,
    as_sentence,
    cut,
    finite,
    picked,
    record_data,
    records,
    table,
)
from ampbench.show.terminal import block_lines, wrapped
from ampbench.store import StoredRun

if TYPE_CHECKING:
    from ampbench.studies.study import Study, Table

Found = TypeVar("Found")
"""The type of a case's record."""
SCREEN, WIDTH = 36, 80
"""The lines of a screen and their width; the notes that follow make it 40 lines."""
ROWS, FEWEST = 10, 3
"""The most rows of a table on a screen; a table without room for the fewest is left out."""


@dataclass(frozen=True, slots=True)
class Subject(Generic[Found]):
    """A case, device or network of a study, by its `name`, with its record `found`."""

    name: str
    found: Found
    case: Case | None = None


def found_of(study: "Study[Any, Found]", stored: StoredRun) -> Mapping[str, Found]:
    """Return the records of a study in a run, by case or device."""
    return study.told(stored) if study.told else stored.of(study.record)


def subjects_of(
    study: "Study[Any, Any]", stored: StoredRun, case_ids: Collection[str] | None = None
) -> list[Subject[Any]]:
    """Return the subjects of a study's run, of the cases `case_ids` (None: all)."""
    if study.subjects is not None:
        named = study.subjects([stored], case_ids if KINDS[study.kind].of_cases else None)
        return [Subject(subject.name, subject) for subject in named]
    known = found_of(study, stored)
    cases = [stored.cases[case_id] for case_id in (known if case_ids is None else case_ids) if case_id in known]
    return [Subject(case_title(case), known[case.case_id], case) for case in cases]


def document(
    study: "Study[Any, Any]",
    stored: StoredRun,
    case_ids: Sequence[str],
    *,
    everything: bool = False,
    in_program: bool = False,
) -> Document:
    """Return the document of a study on the cases `case_ids` of a run: a screen (`in_program`: `Findings`), or all."""
    kind, known, subjects = KINDS[study.kind], found_of(study, stored), subjects_of(study, stored, case_ids)
    key, header, first = study.key or kind.found.line, stored.header, study.tables[0]
    of_cases = {subject.case.case_id: subject for subject in subjects if subject.case}

    def as_data(found: Any) -> Any:
        return list(map(record_data, found)) if isinstance(found, list) else record_data(found)

    outcomes = list(_outcomes(stored, case_ids, known))

    def data() -> dict[str, Any]:
        environment = record_data(header.environment)
        whole: dict[str, Any] = {"run": header.run, "environment": environment, "ended": stored.ending}
        if kind.of_cases:
            whole["cases"] = [
                {
                    "case_id": case_id,
                    "case": record_data(stored.cases[case_id]),
                    "outcome": outcome,
                    "reason": reason or None,
                    **(_concluded(study, of_cases[case_id]) if case_id in of_cases else {}),
                    **({key: as_data(known[case_id])} if case_id in known else {}),
                }
                for case_id, outcome, reason in outcomes
            ]
        else:
            held = map(as_data, known.values())
            whole[key] = [row for data in held for row in (data if isinstance(data, list) else [data])]
        if study.subjects is not None:
            concluded = {subject.name: _concluded(study, subject) for subject in subjects}
            for part in ("sentences", "statements"):
                whole[part] = {name: parts[part] for name, parts in concluded.items()}
            keys = [shape.key for shape in study.tables if shape.key]
            whole["tables"] = {
                key: [row for parts in concluded.values() for row in parts["tables"][key]] for key in keys
            }
        plain: dict[str, Any] = finite(whole)
        return plain

    missing = _missing(stored, outcomes)
    more, further = (".tables", ".code") if in_program else ("-v", "-v")
    code = [
        pasted
        for subject in (subjects if everything or len(subjects) == 1 else ())
        for pasted in _pasted(study, subject, several=len(subjects) > 1, more="" if everything else further)
    ]
    room = SCREEN - len(missing) - sum(pasted.text.count("\n") + 2 for pasted in code)

    def sections() -> list[Section]:
        if everything:
            return [_unfolded(section(study, subject.case, subject.found)) for subject in subjects]
        if len(subjects) > 1 and all(any(study.conclusions(subject.case, subject.found)) for subject in subjects):
            return [_listing(study, subjects, room, more)]
        return [_on_screen(study, subject, room // len(subjects), more) for subject in subjects]

    return Document(
        sections=sections,
        data=data,
        columns=[*(["case_id"] if study.subjects is None else []), *(column.key for column in first.columns)],
        rows=lambda: [
            row
            for subject in subjects
            for row in rows_of(first, subject)
            if not kind.of_cases or row["case_id"] in case_ids
        ],
        missing=missing,
        code=code,
    )


def _pasted(study: "Study[Any, Any]", subject: Subject[Any], *, several: bool, more: str) -> Iterator[Code]:
    """Yield the code to paste of a subject; that for further tools, too, unless `more` has it."""
    texts = study.code(subject.case, subject.found) if subject.case else {}
    owner = f" for {subject.name}" if several else ""
    for place, (tool, text) in enumerate(texts.items()):
        if place and not more:
            yield Code(f"To paste{owner}, with {tool}", text)
        elif not place:
            hint = f" ({more}: with {', '.join([*texts][1:])})" if more and len(texts) > 1 else ""
            yield Code(f"To paste{owner}{hint}", text)


def _missing(stored: StoredRun, outcomes: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return a line for each reason why cases have no result, or a part of one."""
    labels = case_labels(stored.cases[case_id] for case_id, _, _ in outcomes)
    became = {"ok": "the rest was not measured"}
    reasons = by_key((row for row in outcomes if row[2]), lambda row: f"{became.get(row[1], row[1])}: {row[2]}")
    return [f"{few(labels[case_id] for case_id, *_ in rows)}: {reason}" for reason, rows in reasons.items()]


def rows_of(table: "Table[Found, Any]", subject: Subject[Found]) -> list[dict[str, Any]]:
    """Return the rows of a subject for machines, with the id of its case."""
    rows = records(table.columns, table.rows(subject.found))
    return [{"case_id": subject.case.case_id, **row} for row in rows] if subject.case else rows


def _concluded(study: "Study[Any, Found]", subject: Subject[Found]) -> dict[str, Any]:
    """Return the conclusions and tables of a subject for JSON."""
    statements = list(study.conclusions(subject.case, subject.found))
    code = study.code(subject.case, subject.found) if subject.case else {}
    return {
        "sentences": lines(statements),
        **({"code": dict(code)} if code else {}),
        "statements": [asdict(statement) for statement in statements],
        "tables": {shape.key: records(shape.columns, shape.rows(subject.found)) for shape in study.tables if shape.key},
    }


def section(study: "Study[Any, Found]", case: Case | None, record: Found) -> Section:
    """Return the conclusions, tables and remarks of a study on a case."""
    sentences = _sentences([*study.conclusions(case, record)])
    tables = []
    for shape in (shape for shape in study.tables if shape.title):
        columns = picked(shape.columns, *shape.keys.split()) if shape.keys else shape.columns
        rows = [*filter(shape.only, shape.rows(record))]
        tables.append(table(shape.title, columns, rows, shape.note, folded=shape.folded))
    return Section(
        " · ".join(filter(None, [case_title(case) if case else "", study.heading(record)])),
        [
            *map(Block, sentences),
            *(block for block in tables if block.rows),
            *(Block(as_sentence(note)) for note in study.remarks(record)),
        ],
    )


def _on_screen(study: "Study[Any, Found]", subject: Subject[Found], room: int, more: str) -> Section:
    """Return the section of a subject in `room` lines: its tables' first rows, folded ones only where all fits."""
    whole = section(study, subject.case, subject.found)
    room -= len(wrapped(whole.title, WIDTH)) + 2
    if sum(len(block.rows) for block in whole.blocks) < room and sum(map(_lines, whole.blocks)) <= room:
        return _unfolded(whole)
    blocks, hidden = [], 0
    for block in whole.blocks:
        most = bisect_right(range(1, min(len(block.rows), ROWS) + 1), room, key=lambda rows: _lines(cut(block, rows)))
        fits = most >= min(FEWEST, len(block.rows)) if block.rows else _lines(block) <= room
        if fits and not block.folded:
            blocks.append(cut(block, most) if block.rows else block)
            room -= _lines(blocks[-1])
            hidden += len(block.rows) - len(blocks[-1].rows)
    return Section(whole.title, [*blocks, _rest(hidden, more)])


def _rest(hidden: int, more: str) -> Block:
    """Return the last line of a screen that leaves out some rows of its tables."""
    return Block(as_sentence(f"{more} has the rest" + (f": {counted(hidden, 'more row')}" if hidden else "")))


def _unfolded(whole: Section) -> Section:
    return Section(whole.title, [replace(block, folded=False) for block in whole.blocks])


def _lines(block: Block) -> int:
    """Return the lines that a block takes, with a blank one before a table."""
    return len(block_lines(block, WIDTH)) + bool(block.rows)


def _listing(study: "Study[Any, Any]", subjects: Sequence[Subject[Any]], room: int, more: str) -> Section:
    """Return a row for each subject, the most problems first, with one or two conclusions, in `room` lines."""
    cases = [subject.case for subject in subjects if subject.case]
    precisions = {case.precision for case in cases}
    labels = case_labels(cases, precision=len(precisions) > 1)
    traits = [*(precisions if len(precisions) == 1 else []), common_traits(cases)]
    concluded = [(subject, [*study.conclusions(subject.case, subject.found)]) for subject in subjects]
    concluded.sort(key=lambda row: problems(row[1]), reverse=True)
    rows = []
    for subject, statements in concluded:
        name = labels[subject.case.case_id] if subject.case else subject.name
        further = sorted(statements[1:], key=lambda statement: statement.severity is not Severity.PROBLEM)
        rows.append([name, *(" ".join(_sentences([*statements[:1], *others])) for others in (further[:1], []))])
    listed = Block("", [study.subject, "answer"], [row[:2] for row in rows])
    if _lines(listed) > room - 3:
        listed = Block("", listed.headers, [[name, answer] for name, _, answer in rows])
    most = bisect_right(range(1, len(rows) + 1), room - 3, key=lambda length: _lines(cut(listed, length)))
    title = " · ".join(filter(None, [counted(len(subjects), study.subject), *traits]))
    return Section(title, [cut(listed, most), _rest(len(rows) - most, more)])


def _sentences(statements: Sequence[Statement]) -> list[str]:
    names = {statement.subject for statement in statements}
    return [as_sentence(line, names) for line in lines(statements)]


def problems(statements: Iterable[Statement]) -> int:
    """Return the number of problems among statements."""
    return sum(statement.severity is Severity.PROBLEM for statement in statements)


def _outcomes(stored: StoredRun, case_ids: Iterable[str], known: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the id of each case, its outcome, and why it failed, as a whole or in part, or was skipped."""
    for case_id in case_ids:
        failure, skip = stored.failures.get(case_id), stored.skips.get(case_id)
        if case_id in known:
            yield case_id, "ok", failure.said if failure else ""
        elif failure is not None:
            yield case_id, "failed", failure.said
        else:
            yield case_id, "skipped", skip.reason if skip else NOT_REACHED


def case_title(case: Case) -> str:
    """Return the traits of a case in one line."""
    parts = [case.group, case.precision, case.phase, case.device, *([] if case.scaler else ["no scaler"])]
    if case.precision in PRECISIONS and case.input_dtype != SHORT_DTYPES[PRECISIONS[case.precision].storage]:
        parts.append(f"inputs in {case.input_dtype}")
    return " · ".join(parts)


_ERRORS = (
    "{output_rel_l2:if|; output error |error|}{output_rel_l2_fp32:if| (|error| from fp32 inputs)|}"
    "{grad_rel_l2:if|; gradient error |error|}{grad_rel_l2_fp32:if| (|error|)|}"
)
_STEP = "a step takes {after:s}, not {before:s}: {ratio:ratio} as long{low:if| (95%: |.3f|}{high:if| to |.3f|)}"
_TIMES = "{ratio:ratio} {low:if|(95%: |.2f|}{high:if| to |.2f|) }the time of"
TEMPLATES: Mapping[str, str] = {
    "timing-faster": _STEP,
    "timing-slower": _STEP,
    "timing-same": f"{_STEP}: no certain difference",
    "timing-noisy": "step times are too noisy to compare: builds of one step differ by more than {widest:g} times",
    "timing-busy": "do not trust the times: other work took {share:share} of the CPU",
    "storage-raises": "the step does not run with inputs in {dtype}: {error}",
    "storage-same": (
        "nothing is lost: with inputs in {dtype}, {what} are the same to the last bit"
        "{held:only|: {dtype} holds these inputs exactly}"
        "{commutes:only|: rounding before or after their first ops is the same}"
    ),
    "storage-lost": f"information is lost: with inputs in {{dtype}}, {{what}} differ{_ERRORS}",
    "storage-unrepeatable": f"two equal steps give different bits here, so that inputs in {{dtype}} may, too{_ERRORS}",
    "storage-exact": (
        f"{{dtype}} holds these inputs exactly, but ops then compute in {{dtype}}, and {{what}} differ{_ERRORS}"
    ),
    "casts-none": "no casts: {precision} runs without autocast",
    "casts-made": (
        "{casts:counted;cast} {forward:only|in the forward pass (backward pass not traced)}{forward:else|a step}, "
        "{bytes:B}{share:if|, |share| of the traced time}{step:if|, about |s| untraced}"
        "{fake:only| (fake tensors, not on hardware)}"
    ),
    "casts-promoted": (
        "{ops:counted;op} {ops:verb;converts;convert} {inputs:counted;input} inside, {bytes:B}: copies on a CPU, "
        "fused on a GPU"
    ),
    "casts-saved": "{casts:counted;cast} could be saved",
    "casts-weights": (
        "{uses:counted;use of a weight;uses of weights}: {cast} cast, {reused} reused from autocast's cache, {idle} "
        "not needed; the cache {cache:if|keeps |B| alive until autocast's region ends}{cache:else|holds nothing}"
    ),
    "casts-graph": (
        "{casts:counted;cast} where eager mode makes {eager}{kept:if|, || kept}{fused:if|, || fused}"
        "{folded:if|, || folded}"
    ),
    "casts-no-graph": "not made: {error}",
    "casts-inside": "{op} casts {given} to {made} inside, in {count:counted;op}, and is not counted",
    "casts-unseen": "casts inside {names} ({ops:counted;op}) cannot be counted",
    "ceiling-ratio": "{ratio:ratio} fp32's rate{emulated:only| (emulated)}",
    "ceiling-traffic": "as many values are copied in {ratio:ratio} the time of fp32",
    "ceiling-disturbed": (
        "measure again: other work used up to {share:share} of the CPU during "
        "{which:if|||}{which:else|all measurements}"
    ),
    "headroom-nothing": "nothing to predict: no module returned a floating-point value",
    "headroom-overflows": (
        "{count:,} of {modules:counted;module} would overflow (worst {worst}: largest {values} is {reach:.5g} times "
        "{dtype}'s largest number)"
    ),
    "headroom-fits": "nothing in {modules:counted;module} would overflow{flush:only| or flush}",
    "headroom-flushes": "{count:,} would flush ({names})",
    "headroom-near": "{count:,} {count:verb;comes;come} within a factor {margin} of overflow ({names})",
    "headroom-unscaled": (
        "{flushed:else|gradients need no loss scale}"
        "{flushed:if|no loss scale saves the |share| of gradients that flush}"
    ),
    "headroom-scale": (
        "loss scale {lowest}{highest:if| to ||} {flushed:if|loses the fewest gradients, |share|}"
        "{flushed:else|keeps every gradient}{unscaled:if|, |share| are lost without it}; the largest is in {limiting}"
    ),
    "headroom-swallowed": "stored in {dtype}, {share:share} of weight updates would be lost to rounding",
    "headroom-raised": "the step raised an error: {error}",
    "headroom-stored": (
        "{names} {count:verb;overflows;overflow} as stored in {dtype}"
        "{step:if|, so that outputs are not finite in the forward pass of step |,|}"
        "{step:else|, but the outputs are finite}"
    ),
    "headroom-first": "{first}",
    "headroom-nonfinite": "outputs are not finite from step {step:,} on; no single op made the first such value",
    "headroom-finite": "all values of the whole step are finite",
    "headroom-unseen": "the whole step was not observed",
    "headroom-seen": "{event} predicted in {predicted:counted;module}, seen in {seen:,}",
    "headroom-gradients": (
        "gradients{scale:if| at loss scale ||}: {predicted:share} predicted to flush, {seen:share} seen"
        "{nonfinite:if|; not finite in |,|}{parameters:if| of |counted;parameter|}"
    ),
    "headroom-blocks": (
        "{count:,} of {factors:counted;factor} of products {count:verb;loses;lose} values (worst {worst}, {what}: "
        "{zeroed:share} become zero, in {flushed:share} of blocks{saturated:if|; |share| of blocks saturate})"
    ),
    "origin-nothing": "nothing to compare: no module returned a floating-point value",
    "origin-output": "output error {error:error} against {reference} (relative L2)",
    "origin-undefined": "output error undefined{strange:only|: some values are not finite}",
    "origin-overflows": (
        "{count:,} of {modules:counted;module} {count:verb;overflows by itself;overflow by themselves}: {names}"
    ),
    "origin-flushes": (
        "{count:,} of {modules:counted;module} {count:verb;flushes;flush} at least {least:share} of "
        "{count:verb;its;their} outputs to zero: {names}"
    ),
    "origin-kept": (
        "keeping {module} alone in fp32 {share:if|lowers the output error most, by |share|, to }"
        "{share:else|makes the output finite, with an error of }{error:error}{then:if|; next: ||}"
    ),
    "origin-spread": "no single module matters: {module} in fp32 lowers the error most, by {share:share}",
    "origin-worst": "largest own errors: {names}, up to {error:error}",
    "origin-exact": "no module has an error of its own",
    "origin-first": "whole run: {first}",
    "origin-left-out": "{count:,} of {modules:counted;module} not compared: {reasons}",
    "keep-found": "keep {units:,} of {modules:counted;module} in fp32: {names}",
    "keep-nothing": "no module needs fp32",
    "keep-whole": "run the whole network in fp32: no smaller set of modules meets the budget",
    "keep-missed": ("no {untried:only|tried }set of modules in fp32 meets the budget ({trials:counted;trial})"),
    "keep-unfinished": (
        "the search is not finished: {trials:counted;trial} made, {names:else|none meets the budget}"
        "{names:if|the smallest set within the budget so far: ||}"
    ),
    "keep-closest": "closest to the budget: {names} kept{why:if|; a step raised ||}",
    "keep-error": (
        "{what} error against {reference}: {error:error}{before:if| (|error| with none kept)|}"
        "{nonfinite:if| (undefined with none kept: |counted;value| not finite)|}; budget {limit:error}"
    ),
    "keep-update": (
        "{share:if||kept| of the update arrives}{share:else|no share of the update is defined}{why:if| (||)}"
        "{nonfinite:if| (|counted;parameter element| not finite)|}{before:if| (|kept| with none kept)|}; "
        "budget {limit:share}"
    ),
    "keep-minimal": "no single module can be left out ({trials:counted;trial})",
    "keep-spent": ("some of them may not be needed: the search stopped after {trials:counted;trial} (--max-trials)"),
    "keep-confirmed": (
        "confirmed on {batches:counted;other batch;other batches}: output error at most {error:error}"
        "{gradient:if|, gradient error at most |error|}"
    ),
    "keep-unconfirmed": "not confirmed on {more:only|more batches}{more:else|other batches}: {why}",
    "keep-time": f"with these modules kept, a step takes {_TIMES} a step with none kept",
    "keep-faster": f"with these modules kept, a step takes {_TIMES} a step in fp32",
    "keep-slower": f"fp32 is faster here: with these modules kept, a step takes {_TIMES} a step in fp32",
    "keep-untimed": (
        "step time in fp32 not measured{why:if| (||)}: compare with ampbench run on a model that keeps these "
        "modules in fp32"
    ),
    "keep-peak": "peak memory {kept:B} with these modules kept{none:if|, |B| with none}{all:if|, |B| with all}",
    "keep-reference": "errors are against fp32, because the fp64 reference failed: {why}",
    "scope-recommended": "recommended by PyTorch",
    "scope-raises": "raises: {error}",
    "scope-stale": (
        "from step {step} on, {weights:counted;weight} {weights:verb;is;are} stale: the step reads "
        "{weights:verb;a copy;copies} from before the last optimizer step"
    ),
    "scope-casts": "{casts} casts a step instead of {than}",
    "scope-time": "a step takes {ratio:ratio} as long (95%: {low:.2f} to {high:.2f})",
    "scope-peak": "peak memory {peak:B} instead of {than:B}",
    "scope-grows": "memory grows by {growth:B} with each step",
    "scope-keeps": "{kept:B} stay allocated between steps",
    "scope-low-loss": "the loss is computed in {dtype}: cast its input to fp32",
    "scope-error": "{what} error {error:error} against {reference} instead of {than:error}",
    "scope-undefined": "{what} error undefined: values are not finite or have another shape",
    "scope-free": "no extra cost measured",
    "check-defects": (
        "{number:,} of {shown:counted;known defect} found: {training:,} in training, "
        "{inference:,} in inference{traps:if|; |counted;trap| by design}"
    ),
    "check-unasked": ("run `ampbench check`: torch {version} on this processor was not checked for known defects"),
    "check-shown": "remedies: {commands}",
    "check-error": ("{cases:counted;case} failed with a known error: run `ampbench check {check}` ({title})"),
    "check-unmoved": ("{cases:counted;case} left most bf16 weights unchanged: run `ampbench check {check}` ({title})"),
    "check-called": ("{cases:counted;case} called {op}: run `ampbench check {check}` ({title})"),
    "rules-disagree": (
        "documents, dispatcher and observation disagree about {number:,} of {ops:counted;op}{kinds:if|: ||}"
    ),
    "rules-not-probed": "autocast could not be probed: {error}",
    "training-flat": (
        "{learns:only|hardly learns}{learns:else|does not learn}: {metric} is {value:.4g}, before training "
        "{before:.4g}: train for longer, or at another learning rate, to conclude"
    ),
    "training-scale-needed": "fp16 needs loss scaling here; with setting {setting} it trains as fp32 does",
    "training-scale-needless": "fp16 needs no loss scaling here: without it, it trains as fp32 does",
    "training-trains": "{count:verb;trains;train} as fp32 does",
    "training-fails": "{count:verb;does;do} not train as fp32 does",
    "training-open": "inconclusive",
    "training-broke": ("{what}{error:if| ||}{step:if| from step |,|} in {seeds} of {of:counted;seed}{first:if|: ||}"),
    "training-apart": (
        "{metric} is {by:.2f}{unit} {less:only|lower}{less:else|higher} than fp32's"
        "{low:if| (90%: |+.2f|}{high:if| to |+.2f|)}"
    ),
    "training-within": "{metric} within {margin:.2g}{unit}",
    "training-seeds": (
        "{seeds:if|about || seeds would give a verdict}"
        "{margin:if|too near the margin of |.2g|}{unit}{margin:if| for any number of seeds}"
    ),
    "training-one-start": (
        "{one:only|no verdict from one seed: use two, better three or more (--seeds)}"
        "{one:else|every seed gave the same weights and batches: do not seed in the function that makes the workload}"
    ),
    "training-no-ratio": "no comparison: fp32's loss ends at 0, does not fall, or its training broke off",
    "training-seen": "judged on the batches it trained on: the workload has no held-out data",
    "nonfinite-first": "{first}{line:if|; ||}",
    "nonfinite-result": (
        "the result of step {step:,} is not finite, and no op made it: look at weights, inputs, logarithms of 0"
    ),
    "nonfinite-none": "all values are finite in {steps:counted;step}",
    "watch-healthy": "nothing is wrong in {looks:counted;look} at {steps:counted;step}",
    "watch-nothing": "no step was taken by an optimizer of torch that moves this network's parameters",
    "watch-broken": "{what} not finite from step {step:,} on{names:if| (||)}",
    "watch-first": "{first}{line:if|; ||}",
    "watch-after": "the network's outputs are finite (at most {outputs:.3g}): look at the loss function{line:if|; ||}",
    "watch-update": (
        "{share:share} of the update is lost to rounding in {dtype} weights{lr:if| at learning rate |g|} "
        "(limit {limit:share}), by {cause}; most in {worst}, where {kept:kept} arrives: keep fp32 master weights"
    ),
    "watch-would": "{dtype} weights would lose {share:share} of this update{lr:if| at learning rate |g|}",
    "watch-still": (
        "{names} {count:verb;is;are} stored in half and {count:verb;has;have} not moved in any look, "
        "though {count:verb;its gradient is;their gradients are} not zero"
    ),
    "watch-idle": "{names} {count:verb;has;have} no gradient",
    "watch-scale": ("loss scaling fails: {skipped:,} of {steps:counted;step} skipped{scale:if|, scale now ||}"),
    "watch-scaled": "loss scale {first} at first, {scale} now; {skipped:counted;step} skipped",
    "watch-stall": (
        "running statistics stop {away:share} away from the batches' own (limit {limit:share}) in {names}: "
        "keep them in fp32"
    ),
    "watch-raised": "step {step:,} raised {error}",
    "watch-compiled": "modules are compiled by torch.compile: their values were not watched",
    "watch-unknown": "{detail} is no optimizer of torch: its steps were not seen",
    "watch-unjudged": "{detail}: how much of its update half precision loses is not known",
    "watch-failed": "the watch stopped looking after an error of its own: {detail}",
    "training-inexact": "differs from fp32 at the end{control:only|, so that no verdict is possible}",
}


def lines(statements: Iterable[Statement]) -> list[str]:
    """Return statements in plain lines; consecutive statements on a subject share a line behind its name."""
    groups: list[tuple[str, list[str]]] = []
    for statement in statements:
        text = wording.spelled((TEMPLATES.get(statement.code) or wording.TEMPLATES[statement.code]), statement.facts)
        if groups and statement.subject and statement.subject == groups[-1][0]:
            groups[-1][1].append(text)
        else:
            groups.append((statement.subject, [text]))
    return [": ".join(filter(None, [subject, "; ".join(texts)])) for subject, texts in groups]
