"""`python -m ampbench` is `ampbench`."""

import sys

from ampbench.cli.main import main

sys.exit(main())
