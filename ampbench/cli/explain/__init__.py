"""The verbs of `ampbench explain`: each is the module of this package with its name, like the verbs themselves."""

SUBVERBS = {
    "rules": "What autocast does to each op, against what documents say of it.",
}
HELP = """Say why a precision costs and errs what it does.

\b
Examples:
  ampbench explain rules
  ampbench explain rules --help
"""
