"""The verbs of `ampbench explain`: each is the module of this package with its name, like the verbs themselves."""

SUBVERBS = {
    "casts": "Every cast of a step: of what, for which op, what it costs, what could be saved.",
    "headroom": "How large the values are: what would overflow, flush to zero or be swallowed in fp16 and bf16.",
    "origin": "Where the error of a precision begins: what each module adds, and what it inherits.",
    "keep-fp32": "The smallest set of modules to keep in fp32 so that an error budget is met, and what it costs.",
    "rules": "What autocast does to each op, against what documents say of it.",
}
HELP = """Say why a precision costs and errs what it does.

\b
Examples:
  ampbench explain casts model.py:make
  ampbench explain headroom model.py:make
  ampbench explain origin model.py:make --precision fp16_autocast
  ampbench explain keep-fp32 model.py:make --precision fp16_autocast --max-error 1e-2
  ampbench explain rules
  ampbench explain rules --help
"""
