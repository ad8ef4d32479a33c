"""Runs whose every text is what someone might try: markup, scripts, expressions, characters that turn text around."""

from collections.abc import Iterator
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
from ampbench.records.run import Entry
from ampbench.report.material import Material, gather
from tests.compared_runs import noisy, rounds_of
from tests.rule_probes import observation, probe
from tests.stored_runs import COMPLETE, make_case, make_divergence, make_header, make_memory, write_run

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


EVERY, EVERYTHING = list(TEXTS.values()), "\n".join(TEXTS.values())
PRECISIONS = (("fp32", 8), ("bf16_autocast", 8), ("fp32", 16), (TEXTS["script"], None))


def hostile_cases() -> list[Case]:
    """Return cases of hostile workloads, each with a hostile parameter, in two precisions, one of them unknown."""
    known = {"text": TEXTS["attribute"]}
    return [
        make_case(name, workload=path, family="user", parameters={**known, path[:20]: path}, batch_size=batch)
        for path in PATHS
        for name, batch in PRECISIONS
    ]


def hostile_entries(cases: list[Case], factor: float) -> Iterator[Entry]:
    """Yield entries of every kind: of each four cases two are timed, one failed and one was skipped."""
    for number, case in enumerate(cases):
        kind, text = number % 4, EVERY[number // 4 % len(EVERY)]
        if kind < 2:
            yield from rounds_of(case, noisy(factor * (1e-3 + 1e-4 * number), 4, seed=number))
            yield make_memory(case, 1_000_000 + number)
            errors = {"output_rel_l2": 1e-3, "output_floor_rel_l2": 1e-4, "grad_worst_parameter": text}
            yield make_divergence(case, notes=[text, MEGABYTE if number == 0 else EVERYTHING], **errors)
        elif kind == 2:
            told = {"message": MEGABYTE if number == 2 else text, "frames": [text, EVERYTHING]}
            yield Failure(case_id=case.case_id, stage="round", cause="exception", **told)
        else:
            yield Skip(case_id=case.case_id, reason=text)


def hostile_pass(case: Case, seconds: float | None) -> CastPass:
    """Return a traced step in which every name is hostile."""
    one, two, three, four, five, *_ = EVERY
    dtypes = {"inputs": (one,), "outputs": (two,)}
    ops = [
        Operation(
            index=index, name=text, function=text, module=text, source=text, phase=text, seconds=seconds, **dtypes
        )
        for index, text in enumerate(EVERY)
    ]
    cast = {"what": "weight", "name": one, "module": two, "phase": three, "from_dtype": four, "to_dtype": five}
    counted = {"operation": 2, "elements": 1, "bytes_read": 4, "bytes_written": 2, "tensor": 0}
    trace = CastTrace(
        ops=ops,
        casts=[Cast(index=1, seconds=seconds, origin=AUTOCAST, **counted, **cast)],
        weights=[WeightUse(name=one, operation=2, module=two, status=CAST)],
        modules=[ModuleCalls(module=text, kind=text, parameters=(three,), **dtypes) for text in EVERY],
        timed=seconds is not None,
    )
    graph = GraphTrace(graph=one, ops=ops, casts=[GraphCast(fate=EVERY[6], **cast)], notes=EVERY)
    graphs = [graph, GraphTrace(graph=two, error=three)]
    return CastPass(case_id=case.case_id, how="device", graphs=graphs, trace=trace, notes=EVERY)


def write_hostile_run(results: Path, run: str, factor: float, **header: object) -> Path:
    """Write a run of hostile cases on a machine of hostile names, with a probe of ops of hostile names."""
    each = {text: text for text in EVERY}
    named = {"name": TEXTS["end of script"], "reason": TEXTS["control"], "driver": TEXTS["half"]}
    device = DeviceDescription(type="cpu", available=True, arithmetic=each, details=each, **named)
    here = {"host": "script", "system": "end of style", "python_version": "entity", "torch_commit": "quotes"}
    here |= {"torchvision_version": "turned", "compiler": "template"}
    environment = replace(
        make_header().environment, cpu=TEXTS["attribute"] + MEGABYTE, cpu_flags=EVERY, devices=[device],
        unavailable=each, variables={text: f"{text} of {run}" for text in EVERY},
        **{name: TEXTS[text] for name, text in here.items()},
    )  # fmt: skip
    cases, rules = hostile_cases(), {"observed": "float32", "documented": {"xpu_reference": "lower_precision"}}
    fields = {
        "run": run, "label": TEXTS["end of title"] + TEXTS["turned"], "commit": TEXTS["script"],
        "command": ["ampbench", "run", *EVERY], "environment": environment,
        "sources": [WorkloadSource(name=path, family="user", module=path, function=path, builtin=False)
                    for path in PATHS],
    }  # fmt: skip
    traces = [hostile_pass(cases[0], factor), hostile_pass(cases[1], None), hostile_pass(cases[4], factor)]
    probed = probe(*(observation(text, reason=text, **rules) for text in EVERY))
    return write_run(results, cases, *hostile_entries(cases, factor), *traces, probed, COMPLETE, **fields | header)


def hostile_material(results: Path) -> Material:
    """Return two hostile runs, one the other's baseline, with trends over them."""
    old = write_hostile_run(results, "old", 1.5, started_at="2026-01-30T12:00:00Z")
    new = write_hostile_run(results, "new", 1.0, started_at="2026-01-31T12:00:00Z")
    return gather([str(new)], results, baseline=str(old))
