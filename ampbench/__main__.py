"""`python -m ampbench`, and what the command `ampbench` calls."""

import gc
import sys


def main() -> int:
    """Run the command line and return its exit code; Ctrl-C while it is still being imported ends it as later."""
    try:
        from ampbench.cli.main import main as program
    except BaseException as error:
        from ampbench.errors import INTERRUPTED, is_interruption

        if not is_interruption(error):
            raise
        return INTERRUPTED
    code = program()
    gc.freeze()  # the process ends: to look for cycles among what a large report leaves would take it seconds more
    return code


if __name__ == "__main__":
    sys.exit(main())
