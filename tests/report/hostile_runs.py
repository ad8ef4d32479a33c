"""Runs whose every text is what someone might try: markup, scripts, expressions, characters that turn text around."""

from pathlib import Path

from msgspec.structs import replace

from ampbench.records.case import Case, DeviceDescription, WorkloadSource
from ampbench.records.casts import (
    AUTOCAST,
    CAST,
    Cast,
    CastPass,
    CastTrace,
    GraphCast,
    GraphTrace,
    ModuleCalls,
    Operation,
    WeightUse,
)
from ampbench.records.measured import Failure, Skip
from ampbench.records.rules import RuleProbe
from ampbench.records.run import Entry, Footer
from ampbench.report.material import Material, gather
from tests.compared_runs import noisy, rounds_of
from tests.rule_probes import observation, probe
from tests.stored_runs import make_case, make_divergence, make_header, make_memory, write_run

MEGABYTE = "long " * 200_000
TEXTS = {
    "script": "<script>window.hurt=1;alert(1)</script>",
    "attribute": '"><img src=x onerror=alert(1)>',
    "apostrophe": "' onmouseover='alert(1)",
    "end of script": "</script><script>alert(1)</script>",
    "end of style": "</style><style>*{display:none}</style>",
    "end of title": "</title><svg onload=alert(1)>",
    "template": "{{7*7}}{% raw %}${alert(1)}",
    "markup": "]]><!-- --><b>bold</b>",
    "entity": "&lt;script&gt;&amp;&#x3c;b&#x3e;",
    "address": "javascript:alert(1)",
    "expression": "datum.x + toString(event) || 'a'",
    "turned": "safe\u202ecod.exe",
    "control": "nul\x00 bell\x07 escape\x1b[31m",
    "half": "half \ud800 of a character",
    "emoji": "👩‍💻 naïve 日本 שלום",
    "quotes": "a\"b'c`d\\e",
    "columns": "a.b[0]['c']",
    "prototype": "__proto__",
}
"""What each of them tries, and the text."""
PATHS = ["/a/file.py:<img src=x onerror=alert(1)>", *TEXTS.values()]


def hostile_cases() -> list[Case]:
    """Return cases of hostile workloads, each with a hostile parameter, in two precisions, one of them unknown."""
    return [
        make_case(
            precision,
            workload=workload,
            family="user",
            parameters={"text": TEXTS["attribute"], workload[:20]: workload},
            batch_size=batch,
        )
        for workload in PATHS
        for precision, batch in (("fp32", 8), ("bf16_autocast", 8), ("fp32", 16), (TEXTS["script"], None))
    ]


def hostile_entries(cases: list[Case], factor: float) -> list[Entry]:
    """Return entries of every kind: of each four cases two are timed, one failed and one was skipped."""
    everything = "\n".join(TEXTS.values())
    entries: list[Entry] = []
    for number, case in enumerate(cases):
        kind, text = number % 4, list(TEXTS.values())[number // 4 % len(TEXTS)]
        if kind < 2:
            entries += rounds_of(case, noisy(factor * (1e-3 + 1e-4 * number), 4, seed=number))
            entries += [make_memory(case, 1_000_000 + number)]
            entries += [
                make_divergence(
                    case,
                    output_rel_l2=1e-3,
                    output_floor_rel_l2=1e-4,
                    grad_worst_parameter=text,
                    notes=[text, MEGABYTE if number == 0 else everything],
                )
            ]
        elif kind == 2:
            message = MEGABYTE if number == 2 else text
            entries.append(
                Failure(
                    case_id=case.case_id, stage="round", cause="exception", message=message, frames=[text, everything]
                )
            )
        else:
            entries.append(Skip(case_id=case.case_id, reason=text))
    return entries


def hostile_pass(case: Case, seconds: float | None) -> CastPass:
    """Return a traced step in which every name is hostile."""
    texts = list(TEXTS.values())
    ops = [
        Operation(index=index, name=text, function=text, module=text, inputs=(texts[0],), outputs=(texts[1],),
                  source=text, phase=text, seconds=seconds)
        for index, text in enumerate(texts)
    ]  # fmt: skip
    cast = Cast(
        index=1, operation=2, what="weight", name=texts[0], module=texts[1], phase=texts[2], from_dtype=texts[3],
        to_dtype=texts[4], elements=1, bytes_read=4, bytes_written=2, seconds=seconds, origin=AUTOCAST, tensor=0,
    )  # fmt: skip
    trace = CastTrace(
        ops=ops,
        casts=[cast],
        weights=[WeightUse(name=texts[0], operation=2, module=texts[1], status=CAST)],
        modules=[ModuleCalls(module=text, kind=text, inputs=(texts[0],), outputs=(texts[1],), parameters=(texts[2],))
                 for text in texts],
        timed=seconds is not None,
    )  # fmt: skip
    graph_cast = GraphCast(
        what="weight", name=texts[1], module=texts[2], phase=texts[3], from_dtype=texts[4], to_dtype=texts[5],
        fate=texts[6],
    )  # fmt: skip
    graphs = [
        GraphTrace(graph=texts[0], ops=ops, casts=[graph_cast], notes=texts),
        GraphTrace(graph=texts[1], error=texts[2]),
    ]
    return CastPass(
        case_id=case.case_id,
        how="device",
        graphs=graphs,
        trace=trace,
        notes=texts,
    )


def hostile_probe() -> RuleProbe:
    """Return a probe of ops of hostile names."""
    observations = [
        observation(text, observed="float32", documented={"xpu_reference": "lower_precision"}, reason=text)
        for text in TEXTS.values()
    ]
    return probe(*observations)


def write_hostile_run(results: Path, run: str, factor: float, **header: object) -> Path:
    """Write a run of hostile cases on a machine of hostile names."""
    plain = make_header()
    texts = list(TEXTS.values())
    environment = replace(
        plain.environment,
        host=TEXTS["script"],
        system=TEXTS["end of style"],
        cpu=TEXTS["attribute"] + MEGABYTE,
        python_version=TEXTS["entity"],
        torch_commit=TEXTS["quotes"],
        torchvision_version=TEXTS["turned"],
        compiler=TEXTS["template"],
        cpu_flags=texts,
        devices=[
            DeviceDescription(
                type="cpu",
                available=True,
                name=TEXTS["end of script"],
                reason=TEXTS["control"],
                arithmetic={text: text for text in texts},
                driver=TEXTS["half"],
                details={text: text for text in texts},
            )
        ],
        unavailable={text: text for text in texts},
        variables={text: f"{text} of {run}" for text in texts},
    )
    cases = hostile_cases()
    fields = {
        "run": run,
        "label": TEXTS["end of title"] + TEXTS["turned"],
        "commit": TEXTS["script"],
        "command": ["ampbench", "run", *texts],
        "sources": [
            WorkloadSource(name=path, family="user", module=path, function=path, builtin=False) for path in PATHS
        ],
        "environment": environment,
    }
    finished = Footer(ended="complete", finished_at="2026-01-31T12:05:00Z")
    traces = [hostile_pass(cases[0], factor), hostile_pass(cases[1], None), hostile_pass(cases[4], factor)]
    entries = [*hostile_entries(cases, factor), *traces, hostile_probe()]
    return write_run(results, cases, *entries, finished, **fields | header)


def hostile_material(results: Path) -> Material:
    """Return two hostile runs, one the other's baseline, with trends over them."""
    old = write_hostile_run(results, "old", 1.5, started_at="2026-01-30T12:00:00Z")
    new = write_hostile_run(results, "new", 1.0, started_at="2026-01-31T12:00:00Z")
    return gather([str(new)], results, baseline=str(old))
