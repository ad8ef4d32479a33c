"""The verbs of `ampbench explain`: each is the module of this package with its name, like the verbs themselves."""

SUBVERBS = {
    "casts": "Every cast of a step: of what, for which op, what it costs, what could be saved.",
    "rules": "What autocast does to each op, against what documents say of it.",
}
HELP = """Say why a precision costs and errs what it does.

\b
Examples:
  ampbench explain casts model.py:make
  ampbench explain rules
  ampbench explain rules --help
"""
