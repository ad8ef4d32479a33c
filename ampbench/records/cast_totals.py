"""What a trace's casts add up to, and which of them could be saved. Pure functions on records, without torch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampbench.base.units import format_bytes, format_seconds, format_share
from ampbench.records.casts import AUTOCAST, BUFFER, INPUT, INTERNAL, WEIGHT, Cast, CastTrace
from ampbench.records.labels import few

STORE, KEEP, ONCE, STAY = "store", "keep", "once", "stay"
"""How casts are saved: store an input, a weight or a buffer in the low dtype, keep a weight's copy, cast once, stay
there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What the `casts` casts of a trace cost, which holds one step.

    `seconds` is None for a trace that was not timed; `share` is that of all ops' seconds (0-1). `by_what`, `by_origin`
    and `by_phase` count casts, `weights` the uses of weights by status. `cache_bytes` is what autocast's cache holds.
    """

    steps: int = 1
    ops: int
    casts: int
    bytes_read: int
    bytes_written: int
    seconds: float | None
    share: float | None
    by_what: Mapping[str, int]
    by_origin: Mapping[str, int]
    by_phase: Mapping[str, int]
    weights: Mapping[str, int]
    cache_bytes: int

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written together."""
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Casts (their ops) that one change would make unnecessary: `kind` is a key above, `advice` the change.

    `names` are the tensors': all inputs, weights or buffers that one change of one kind is about, or one activation.
    `bytes_moved` and `seconds` are what those casts cost; what the change really saves is to be measured.
    """

    kind: str
    what: str
    names: tuple[str, ...]
    casts: tuple[int, ...]
    bytes_moved: int
    seconds: float | None
    advice: str


def totals(trace: CastTrace) -> Totals:
    """Return what the casts of `trace`, which holds a step, add up to."""
    seconds = share = None
    if trace.timed:
        seconds = sum(cast.seconds or 0.0 for cast in trace.casts)
        whole = sum(operation.seconds or 0.0 for operation in trace.ops)
        share = seconds / whole if whole else None
    return Totals(
        ops=len(trace.ops),
        casts=len(trace.casts),
        bytes_read=sum(cast.bytes_read for cast in trace.casts),
        bytes_written=sum(cast.bytes_written for cast in trace.casts),
        seconds=seconds,
        share=share,
        by_what=Counter(cast.what for cast in trace.casts),
        by_origin=Counter(cast.origin for cast in trace.casts),
        by_phase=Counter(cast.phase for cast in trace.casts),
        weights=Counter(use.status for use in trace.weights),
        cache_bytes=cache_bytes(trace),
    )


def cache_bytes(trace: CastTrace) -> int:
    """Return the bytes of the copies autocast's cache keeps alive until its region ends, each weight's once.

    A weight that an optimizer has changed is another value of the same weight, in another region.
    """
    held = {(cast.name or cast.tensor, cast.to_dtype): cast.bytes_written for cast in trace.casts if cast.cached}
    return sum(held.values())


def savings(trace: CastTrace) -> list[Saving]:
    """Return what could be saved, the largest first; a cast is counted in one saving only.

    An input that every op casts could be stored in that dtype; a weight that autocast's cache does not hold is cast
    again at each use; any value cast twice to one dtype could be cast once; a copy that is cast back to where it came
    from could have stayed there. In inference, a weight or a buffer that no op reads as it is could be stored in the
    dtype it is cast to; training, which updates it in fp32, would change. Casts inside an op's implementation are
    nobody's to save.
    """
    groups: dict[tuple[str, str, str, int], list[Cast]] = {}
    by_index = {cast.index: cast for cast in trace.casts}
    seen: set[tuple[int, str]] = set()
    for cast in trace.casts:
        kind = None if cast.origin == INTERNAL else _kind(cast, seen, by_index, trace.inference)
        seen.add((cast.tensor, cast.to_dtype))
        if kind is not None:
            together = cast.name and cast.what in (INPUT, WEIGHT, BUFFER)
            groups.setdefault((kind, cast.what, cast.to_dtype, 0 if together else cast.tensor), []).append(cast)
    found = [
        Saving(
            kind=kind,
            what=what,
            names=tuple(dict.fromkeys(cast.name for cast in casts)),
            casts=tuple(cast.index for cast in casts),
            bytes_moved=sum(cast.bytes_moved for cast in casts),
            seconds=sum(cast.seconds or 0.0 for cast in casts) if trace.timed else None,
            advice=_advice(kind, casts),
        )
        for (kind, what, _, _), casts in groups.items()
    ]
    return sorted(found, key=lambda saving: (-(saving.seconds or 0.0), -saving.bytes_moved, saving.casts))


def sentence(
    whole: Totals, found: Sequence[Saving], *, of: str = "a step", step_cast_seconds: float | None = None
) -> str:
    """Return "24 casts a step, 43.9 MiB, 11.0% of the traced ops' time (1.20 ms); 3 of them could be saved".

    `of` is what a count is of; `step_cast_seconds` what the casts take of an untraced step, said beside their traced
    time: tracing takes some microseconds an op, which a small step feels.
    """
    parts = [f"{whole.casts} {'cast' if whole.casts == 1 else 'casts'} {of}", format_bytes(whole.bytes_moved)]
    if whole.seconds is not None and whole.casts:
        took = format_seconds(whole.seconds)
        parts.append(f"{format_share(whole.share)} of the traced ops' time ({took})")
        if step_cast_seconds is not None:
            parts.append(f"about {format_seconds(step_cast_seconds)} of the untraced step")
    saved = sum(len(saving.casts) for saving in found)
    return ", ".join(parts) + (f"; {saved} of them could be saved" if saved else "")


def _kind(cast: Cast, seen: set[tuple[int, str]], by_index: Mapping[int, Cast], inference: bool) -> str | None:
    if cast.what == INPUT and cast.origin == AUTOCAST and not cast.read_as_is and _lowers(cast):
        return STORE
    if (cast.tensor, cast.to_dtype) in seen and not cast.cached:
        return KEEP if cast.what == WEIGHT else ONCE
    kept = inference and cast.what in (WEIGHT, BUFFER)
    if kept and cast.origin == AUTOCAST and not cast.read_as_is and _lowers(cast):
        return STORE
    maker = by_index.get(cast.made_by) if cast.made_by is not None else None
    if maker is not None and maker.from_dtype == cast.to_dtype and cast.phase == maker.phase:
        return STAY
    return None


def _lowers(cast: Cast) -> bool:
    return cast.bytes_written < cast.bytes_read


def _advice(kind: str, casts: Sequence[Cast]) -> str:
    cast = casts[0]
    named = _named(casts)
    if kind == STORE:
        return f"store {named} in {cast.to_dtype}: no op reads {_them(casts)} uncast"
    if kind == KEEP:
        return (
            f"keep the copy of {named}, which autocast's cache does not hold: it holds fp32 leaves that require grad, "
            "outside inference mode"
        )
    if kind == ONCE:
        return f"cast {named} to {cast.to_dtype} once and pass the copy on: it is cast more than once"
    return f"{named} goes from {cast.to_dtype} to {cast.from_dtype} and back: one of its ops could stay"


def _named(casts: Sequence[Cast]) -> str:
    """Return "weight fc.weight" or "10 weights (conv1.weight, fc.weight and 8 more)"."""
    what = casts[0].what
    names = list(dict.fromkeys(cast.name for cast in casts))
    if names in ([""], [what]):
        return f"the {what}{'' if names[0] else ' without a name'}"
    if len(names) == 1:
        return f"{what} {names[0]}"
    return f"{len(names)} {what}s ({few(names)})"


def _them(casts: Sequence[Cast]) -> str:
    return "it" if len({cast.name for cast in casts}) == 1 else "them"
