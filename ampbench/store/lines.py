"""One line of a run file: a record as JSON, and JSON as a record, strictly.

What is written is `{"round": {...}}`: one key, the kind of line, as in `records.runs.Line`. What is read must have all
required fields, no field that is not known, and the right types; a `LineError` says what is wrong.
"""

import functools
import operator
import types
from collections.abc import Callable, Container, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from ampbench.errors import escaped
from ampbench.metrics import METRICS
from ampbench.precisions import PRECISIONS
from ampbench.records.keeping import OBJECTIVES
from ampbench.records.ranges import ACTIVATION, GRADIENT, INPUT, UPDATE, WEIGHT, RangePass
from ampbench.records.rules import CATEGORIES, DEVICE, FAKE, NOT_OBSERVED, RuleProbe
from ampbench.records.runs import KINDS as RUN_KINDS
from ampbench.records.runs import SCHEMA, Entry, Header, Line
from ampbench.records.studies import ARMS, OPERATIONS, SCOPES, USES
from ampbench.store import plausible

Rounds = dict[str, int]
"""Which rounds a file has, by case id: a bit for each number, own, of the control or confirming."""


class LineError(ValueError):
    """A line that is not what it should be; the message continues "FILE, line N: "."""


def _mirror(annotation: Any, numbers: plausible.Range | None = None) -> Any:
    """Return `annotation` with every dataclass in it replaced by its strict struct, and numbers bounded."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        record: Any = annotation
        return strict_struct(record)
    if numbers is not None and annotation in (int, float):
        lowest, highest = map(annotation, numbers)
        return Annotated[annotation, msgspec.Meta(ge=lowest, le=highest)]
    origin, arguments = get_origin(annotation), tuple(_mirror(argument, numbers) for argument in get_args(annotation))
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, arguments)
    return origin[arguments] if origin else annotation


@functools.cache
def strict_struct(record: Any) -> Any:
    """Return a struct with the fields of the dataclass `record` which refuses unknown ones, and implausible values.

    msgspec ignores unknown keys when it decodes dataclasses, so a damaged key of an optional field would go unnoticed.
    Structs are also decoded faster, and are not tracked by the garbage collector.
    """
    hints = get_type_hints(record)
    definitions: list[Any] = []
    for field in fields(record):
        words = plausible.WORDS.get((record.__name__, field.name))
        kind = Literal[words] if words else _mirror(hints[field.name], plausible.allowed(record, field.name))
        definition: tuple[Any, ...] = (field.name, kind)
        if field.default is not MISSING:
            definition += (field.default,)
        elif field.default_factory is not MISSING:
            definition += (msgspec.field(default_factory=_mirror(field.default_factory)),)
        definitions.append(definition)
    return msgspec.defstruct(record.__name__, definitions, kw_only=True, gc=False, forbid_unknown_fields=True)


def _plain(value: Any) -> Any:
    """Return what msgspec can encode instead of `value`: a dict for any other mapping."""
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError


KINDS: Mapping[type, str] = {
    next(part for part in get_args(hint) if part is not type(None)): name for name, hint in get_type_hints(Line).items()
}
"""What each type of record is called in the file."""

_TYPES = {name: record for record, name in KINDS.items()}
_OF_NO_CASE = {"header", "case", "footer", *(kind.line for kind in RUN_KINDS.values() if not kind.of_cases)}
_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_DECODERS: Mapping[bytes, tuple[str, Callable[[bytes], Any]]] = {
    name.encode(): (
        name,
        msgspec.json.Decoder(
            msgspec.defstruct(name, [(name, strict_struct(record))], gc=False, forbid_unknown_fields=True)
        ).decode,
    )
    for name, record in _TYPES.items()
}
_VALUES = frozenset({INPUT, ACTIVATION, GRADIENT, WEIGHT, UPDATE})
_STUDIES: Mapping[str, Callable[[Any], list[tuple[str, str, Container[str]]]]] = {
    "training": lambda found: [("an arm", found.arm, ("", *ARMS))],
    "scaling": lambda found: [("a precision", found.precision, PRECISIONS)],
    "scopes": lambda found: [("a scope", one.scope, SCOPES) for one in found.scopes],
    "storage": lambda found: [("a use", one.use, USES) for one in found.uses],
    "ceiling": lambda found: [("an operation", found.operation, OPERATIONS)],
}
"""What names in a record of a study, and which of them there are."""
DAMAGED_OR_NEWER = "damaged, or written by a newer ampbench (upgrade this one)"
_ROUND = b'{"round":'
_OLD_PROBE = b'{"autocast_rules":'
_decode_round = _DECODERS[b"round"][1]


def _unknown(_: bytes) -> Any:
    raise LineError(f"{DAMAGED_OR_NEWER}: none of the kinds {', '.join(_TYPES)}")


_UNKNOWN = ("", _unknown)


class _AnySchema(msgspec.Struct):
    schema: int


class _AnyHeader(msgspec.Struct):
    header: _AnySchema


def encode(record: Header | Entry) -> bytes:
    """Return `record` as one line, newline included.

    Numbers that are not finite become null. Characters that UTF-8 does not have (undecodable bytes of a path or a
    command line) are written as backslash escapes.
    """
    line = {KINDS[type(record)]: record}
    try:
        return _ENCODER.encode(line) + b"\n"
    except UnicodeEncodeError:
        return _ENCODER.encode(escaped(msgspec.to_builtins(line, enc_hook=_plain))) + b"\n"


def decode(line: bytes) -> tuple[str, Any]:
    """Return the kind and the record of one `line`; `LineError` where it is damaged.

    The record has the attributes of its dataclass without being one: `to_record` makes it so.
    """
    try:
        if line.startswith(_ROUND):  # nearly all lines of a large file are
            return "round", _decode_round(line).round
        kind, decode = _DECODERS.get(line[2 : line.find(b'"', 2)], _UNKNOWN)
        return kind, getattr(decode(line), kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        unknown = "unknown field" in str(error)
        raise LineError(f"{DAMAGED_OR_NEWER if unknown else 'damaged'}: {error}") from None


def check_header(data: bytes) -> None:
    """Raise `LineError` unless `data`, a file's first line, is a header of a schema that this version reads."""
    try:
        schema = msgspec.json.decode(data, type=_AnyHeader).header.schema
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if data.startswith(_OLD_PROBE):
            raise LineError(
                "no header of an ampbench run but a probe of autocast's rules in a format that was never released: "
                "`ampbench explain rules` probes anew"
            ) from None
        try:
            kind, _ = decode(data)
        except LineError:
            raise LineError("no header of an ampbench run: this is another program's file or a damaged one") from None
        raise LineError(f"no header: the file begins with a {kind}, so its beginning is lost") from None
    if schema > SCHEMA:
        raise LineError(
            f"written by a newer ampbench (schema {schema}; this one reads 1 to {SCHEMA}); upgrade ampbench"
        )
    if schema < 1:
        raise LineError(f"unknown schema {schema}; this ampbench reads 1 to {SCHEMA}")


def check_said(header: Header) -> None:
    """Raise `LineError` unless `header` explains what there is and its times, the order of trends, are ISO 8601."""
    if header.explains and header.explains not in RUN_KINDS:
        raise LineError(f"damaged: explains what there is not: {header.explains!r}")
    for name, text in (("started_at", header.started_at), ("committed_at", header.committed_at)):
        if text is not None and (wrong := plausible.wrong_time(text)):
            raise LineError(f"damaged: {name} {wrong}")


def check_entry(
    kind: str,
    case_id: str,
    record: Any,
    case_ids: Container[str],
    probed: Container[str] = (),
    spaced: Container[str] = (),
    rounds: Rounds | None = None,
) -> None:
    """Raise `LineError` unless `record`, of the case `case_id` if of any, may follow the cases with `case_ids`.

    `probed` are the device types whose rules are there already, `spaced` the ids of the cases with a search space,
    `rounds` the rounds that are there, to which a round is added.
    """
    if kind not in _OF_NO_CASE and case_id not in case_ids:
        raise LineError(f"a {kind} of a case that is not listed before it: {case_id}")
    if kind == "round":
        _check_round(record, {} if rounds is None else rounds)
        return
    if kind == "reading":
        if record.metric not in METRICS:
            raise LineError(f"a reading of an unknown metric, {record.metric}, of {case_id}")
        if wrong := plausible.wrong_reading(record.metric, record.value):
            raise LineError(f"damaged: {wrong}, of {case_id}")
    if kind == "case" and case_id in case_ids:
        raise LineError(f"a case listed twice: {case_id}")
    if kind == "rules":
        _check_probe(record, probed)
    if kind == "ranges":
        _check_ranges(record)
    if kind in ("space", "trial", "search"):
        _check_search(kind, record, spaced)
    if kind in _STUDIES:
        _check_study(kind, record)
    if kind == "header":
        raise LineError("a second header: two files were put together")
    if kind == "footer" and (wrong := plausible.wrong_time(record.finished_at)):
        raise LineError(f"damaged: finished_at {wrong}")
    if record is not None and (wrong := plausible.wrong_parts(record)):
        raise LineError(f"damaged: {wrong}")


def _check_round(record: Any, rounds: Rounds) -> None:
    case_id = record.case_id
    if not (record.samples and all(record.samples)):
        raise LineError(f"a round without samples of {case_id}")
    if record.cpu_samples and list(map(len, record.cpu_samples)) != list(map(len, record.samples)):
        raise LineError(f"CPU times that are not those of the samples, in a round of {case_id}")
    if wrong := plausible.wrong_time(record.finished_at):
        raise LineError(f"damaged: finished_at {wrong}")
    add_round(record, rounds)


def add_round(record: Any, rounds: Rounds) -> None:
    """Add a round to those that a file has; `LineError` where it has it."""
    bit = 1 << (4 * record.round + 2 * record.confirmation + record.control)
    known = rounds.get(record.case_id, 0)
    if known & bit:
        which = f"{'control ' if record.control else ''}round {record.round}"
        raise LineError(f"a second {which} of {record.case_id}: lines were appended twice")
    rounds[record.case_id] = known | bit


def own_rounds(known: int) -> set[int]:
    """Return the numbers of a case's own rounds, neither confirmations nor the control's, as `Rounds` has them."""
    return {number for number in range(known.bit_length() // 4 + 1) if known >> (4 * number) & 1}


def _check_probe(probe: RuleProbe, probed: Container[str]) -> None:
    if probe.device in probed:
        raise LineError(f"a second probe of autocast's rules on {probe.device}")
    for one in probe.observations:
        if one.observed not in (*CATEGORIES, None):
            raise LineError(f"{one.op} on {probe.device} has a rule that there is not: {one.observed!r}")
        if one.how not in (DEVICE, FAKE, NOT_OBSERVED):
            raise LineError(f"{one.op} on {probe.device} was observed in a way that there is not: {one.how!r}")


def _check_ranges(found: RangePass) -> None:
    for values in found.magnitudes:
        if values.what not in _VALUES:
            raise LineError(f"values of a kind that there is not, {values.what!r}, of {found.case_id}")
    for low in [*found.low_runs, *(low for one in found.validations for low in one.low_runs)]:
        if low.precision not in PRECISIONS:
            raise LineError(f"an unknown precision, {low.precision!r}, beside {found.case_id}")


def _check_search(kind: str, record: Any, spaced: Container[str]) -> None:
    if kind == "space" and record.case_id in spaced:
        raise LineError(f"a second search space of {record.case_id}")
    if kind != "space" and record.case_id not in spaced:
        raise LineError(f"a {kind} without a search space before it: {record.case_id}")
    searched = record.wanted if kind == "space" else record if kind == "search" else None
    if searched is not None and searched.objective not in OBJECTIVES:
        raise LineError(f"a search for what there is not, {searched.objective!r}, of {record.case_id}")


def _check_study(kind: str, record: Any) -> None:
    of = f"{record.operation} on {record.device}" if kind == "ceiling" else record.case_id
    for what, name, known in _STUDIES[kind](record):
        if name not in known:
            raise LineError(f"{what} that there is not, {name!r}, in a {kind} of {of}")


def to_record(kind: str, record: Any) -> Any:
    """Return a decoded `record` of `kind` as the dataclass it stands for."""
    return msgspec.convert(record, _TYPES[kind], from_attributes=True)
