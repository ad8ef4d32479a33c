"""What follows from what the modules of a case give, in sentences."""

from ampbench.core.units import counted, format_bytes
from ampbench.instruments.shapes.records import ShapesPass


def shapes_said(found: ShapesPass) -> list[str]:
    """Return how much the modules of a case give, and which of them the most: sentences without a full stop."""
    if not found.modules:
        return ["no module gives a tensor"]
    most = max(found.modules, key=lambda one: one.stored_bytes)
    total = sum(one.stored_bytes for one in found.modules)
    many = counted(len(found.modules), "module")
    return [f"{many}: {format_bytes(total)} of outputs, {format_bytes(most.stored_bytes)} of {most.module} at most"]
