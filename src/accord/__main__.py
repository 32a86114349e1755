"""``python -m accord``: the command line."""

import sys

from accord.cli.main import main

sys.exit(main())
