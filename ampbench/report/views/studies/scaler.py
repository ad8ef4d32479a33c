"""Loss scaling: whether gradients flush without it, and what settings of GradScaler make of a training."""

from collections.abc import Sequence

from ampbench.blocks import as_sentence
from ampbench.labels import few
from ampbench.records.runs import SCALER
from ampbench.records.studies import ScalerRun
from ampbench.report.explained import Told, untold
from ampbench.report.material import Material
from ampbench.report.studied import scaler_runs
from ampbench.report.views.part import Detail, Part, strange, told_part
from ampbench.report.views.studies.drawing import drawn
from ampbench.report.views.studies.scaler_charts import DRAWINGS, EXPONENT_DRAWING, stored_gradients
from ampbench.report.views.studies.telling import Overview, detail_of, with_overview
from ampbench.studied.scaler.blocks import scaling_section
from ampbench.studied.scaler.outcomes import outcomes
from ampbench.studied.scaler.sentences import scaler_said
from ampbench.units import counted


def scaler(material: Material) -> Part | None:
    """Return the cases that were trained with several settings of the scaler, those first of which most fail."""
    found, missing = scaler_runs(material), untold(material, SCALER)
    if not (found or missing):
        return None
    charts, datasets, said = drawn(found, *DRAWINGS)
    stored = drawn(stored_gradients(found), EXPONENT_DRAWING)
    part = told_part(
        found,
        missing,
        id="scaler",
        title="Loss scaling, setting by setting",
        said=[*_said(found), *strange(material, SCALER, "Trained"), *said],
        detail=_detail,
        drawn=([*charts, *stored[0]], {**datasets, **stored[1]}),
    )
    rows = [(one.name, [[as_sentence(line) for line in scaler_said(one.case, one.found)]]) for one in found]
    caption = "What fp16 needs of loss scaling, those first of whose settings most fail"
    return with_overview(part, Overview(caption=caption, headers=["found"], rows=rows, wide={"found"}))


def _said(found: Sequence[Told[list[ScalerRun]]]) -> list[str]:
    """Return in which of several cases training without scaling fails; of one, its own sentences say it."""
    if len(found) < 2:
        return []
    needing = [one for one in found if any(each.fails and not each.run.setting.enabled for each in outcomes(one.found))]
    which = f": {few(one.name for one in needing)}" if needing else ""
    verb = "fails" if len(needing) == 1 else "fail"
    return [f"Of {counted(len(found), 'case')}, {len(needing) or 'none'} {verb} without loss scaling{which}."]


def _detail(one: Told[list[ScalerRun]]) -> Detail:
    return detail_of(one.name, scaling_section(one.case, one.found), ["Training loss", "Gradients"])
