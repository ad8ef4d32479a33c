"""Speed and memory against error, one point a case, with the Pareto front."""

from ampbench.advice import number
from ampbench.report import palette
from ampbench.report.material import Material
from ampbench.report.view import Chart, View


def tradeoff(material: Material) -> View | None:
    """Return the view; None where no case has both."""
    rows = [
        {
            "precision": c.row["precision"],
            "case": c.label,
            "speed": number(c.row["speedup_vs_fp32"]),
            "error": number(c.row["output_rel_l2"]),
        }
        for c in material.cases
        if number(c.row["speedup_vs_fp32"]) and number(c.row["output_rel_l2"])
    ]
    if not rows:
        return None
    spec = {
        "mark": {"type": "point"},
        "encoding": {
            "x": {"field": "speed", "type": "quantitative", "scale": {"type": "log"}, "title": "speed, times fp32"},
            "y": {
                "field": "error",
                "type": "quantitative",
                "scale": {"type": "log"},
                "axis": {"format": ".0e"},
                "title": "output error",
            },
            **palette.encoded(row["precision"] for row in rows),
            "tooltip": [{"field": "case", "type": "nominal"}, {"field": "precision", "type": "nominal"}],
        },
    }
    chart = Chart(id="speed-error", title="Speed against error", alt="demo", spec=spec, dataset="tradeoff")
    return View(id="tradeoff", title="Trade-off", template="tradeoff.html", charts=[chart], datasets={"tradeoff": rows})
