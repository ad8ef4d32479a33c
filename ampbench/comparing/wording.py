"""Changes in words."""

from ampbench.comparing.deciding import ALPHA, LOOKS, Decision
from ampbench.units import format_limit, format_percent, format_percent_range
from ampbench.verdicts import Code

LARGEST_WORTH_SAYING = 10.0
"""Changes beyond this are not told as numbers where nothing is certain: three rounds can bound next to nothing."""


def change_in_words(change: float) -> str:
    """Return a relative change of a time as "7.2% slower"; from three times as long on, as "3.1 times as long"."""
    if change >= 2:
        return f"{1 + change:.3g} times as long"
    return f"{format_percent(abs(change))} {'slower' if change > 0 else 'faster'}"


def decision_in_words(
    decision: Decision, threshold: float, what: str, fresh: int, mean_threshold: float | None = None
) -> str:
    """Return why a time's verdict is what it is, in one sentence with its numbers.

    `what` are "blocks" or "rounds", `fresh` is the number of those that confirm. `mean_threshold` is what the mean over
    all samples may change by, where it was judged.
    """
    counted = _counted(decision, what)
    if decision.code is Code.INVALID:
        return "a time that is no time: zero, negative or infinite"
    if decision.code is Code.TOO_FEW_BLOCKS or decision.change is None:
        needed = f"; about {decision.blocks_needed} would decide" if decision.blocks_needed else ""
        return f"only {counted}: too few for a verdict{needed}"
    change = f"{change_in_words(decision.change)}{_interval(decision)}"
    bound = f"threshold {format_limit(threshold)}"
    match decision.code:
        case Code.BEYOND_THRESHOLD:
            confirmed = f", confirmed by {fresh} fresh ones" if fresh else ""
            return f"{change}, certainly over {format_limit(threshold)}, {counted}{confirmed}"
        case Code.WITHIN_THRESHOLD:
            mean = ""
            if mean_threshold is not None and decision.mean_code is Code.WITHIN_THRESHOLD:
                mean = f", the mean of all samples within {format_limit(mean_threshold)}"
            return f"typical time {change}, within {format_limit(threshold)}{mean}, {counted}"
        case Code.TAIL_UNDECIDED:
            typical = f"typical time {change}, within {format_limit(threshold)}"
            if mean_threshold is None or decision.mean_change is None:
                return f"{typical}, but nothing bounds the mean of all samples, {counted}"
            mean = f"{change_in_words(decision.mean_change)}{_ends(decision.mean_low, decision.mean_high)}"
            allowed = format_limit(mean_threshold)
            return f"{typical}, but the mean of all samples {mean}, which is not certainly within {allowed}, {counted}"
        case Code.UNCONFIRMED:
            return f"{change}, {bound}, {counted}; fresh ones are still to confirm it"
        case Code.NOT_CONFIRMED:
            return f"a change was seen in {counted}, and {fresh} fresh ones did not confirm it: {change}, {bound}"
    return _undecided(decision, threshold, what)


def mean_in_words(decision: Decision, threshold: float, what: str, fresh: int) -> str:
    """Return what became of the mean over all samples, where it moved and the typical time is not known to have."""
    counted = _counted(decision, what)
    change = f"{change_in_words(decision.mean_change or 0.0)}{_ends(decision.mean_low, decision.mean_high)}"
    bound = f"threshold {format_limit(threshold)}"
    match decision.mean_code:
        case Code.UNCONFIRMED:
            said = f"{change}, {bound}, {counted}; fresh ones are still to confirm it"
        case Code.NOT_CONFIRMED:
            said = f"a change was seen in {counted}, and {fresh} fresh ones did not confirm it: {change}, {bound}"
        case _:
            confirmed = f", confirmed by {fresh} fresh ones" if fresh else ""
            said = f"{change}, certainly over {format_limit(threshold)}, {counted}{confirmed}"
    typical = "is not known to have changed" if decision.code is Code.UNDECIDED else "did not change"
    return f"mean of all samples, slow steps among them: {said}; the typical step {typical}"


def _counted(decision: Decision, what: str) -> str:
    return f"{decision.blocks} {what if decision.blocks != 1 else what.removesuffix('s')}"


def _ends(low: float | None, high: float | None) -> str:
    """Return " (95%: -1.1 to +8.4%)", "" where there is no interval."""
    if low is None or high is None or low == high:
        return ""
    most = min(high, LARGEST_WORTH_SAYING)
    return f" (95%: {format_percent_range(low, most, sign=True)})"


def _undecided(decision: Decision, threshold: float, what: str) -> str:
    parts = [change_in_words(decision.change or 0.0)]
    if decision.low is not None and decision.high is not None:
        high = f"over {format_percent(LARGEST_WORTH_SAYING, sign=True)}"
        if decision.high <= LARGEST_WORTH_SAYING:
            high = format_percent(decision.high, sign=True)
        parts = [f"between {format_percent(decision.low, sign=True)} and {high}"]
    if differs := _certainly_differs(decision):
        parts[0] = f"certainly {differs}, {parts[0]}, but not certainly by more than {format_limit(threshold)}"
    if decision.detectable_change is not None and decision.detectable_change <= LARGEST_WORTH_SAYING:
        parts.append(f"a change of {format_percent(decision.detectable_change)} would have been seen")
    more = f"about {decision.blocks_needed} {what} would decide" if decision.blocks_needed else f"more {what} would not"
    parts.append(more if decision.blocks_needed else f"{more} decide it soon")
    return "; ".join(parts)


def _certainly_differs(decision: Decision) -> str:
    """Return "slower" or "faster" where it is certain that there is a change, of whatever size; else ""."""
    for p_value, word in ((decision.p_worse, "slower"), (decision.p_better, "faster")):
        if p_value is not None and p_value <= ALPHA / len(LOOKS):
            return word
    return ""


def _interval(decision: Decision) -> str:
    """Return " (95%: 6.1 to 8.4%)", in the direction of the change, "" where there is none."""
    if decision.low is None or decision.high is None or decision.change is None or decision.change >= 2:
        return ""
    ends = (decision.low, decision.high) if decision.change > 0 else (-decision.high, -decision.low)
    return f" (95%: {format_percent_range(*ends)})"
