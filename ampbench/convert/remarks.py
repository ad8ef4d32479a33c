"""What is said of an import: names in a length that fits into a line."""

from collections.abc import Iterable

LONGEST = 200


def listed(names: Iterable[str]) -> str:
    """Return names separated by commas, cut where there are too many; "none" where there is none."""
    text = ", ".join(names) or "none"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
