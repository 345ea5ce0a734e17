"""`python -m shadowprice`: the command, where its script is not on the path."""

import sys

from shadowprice.cli import main

sys.exit(main())
