"""``python -m autoshard.cluster``: the command ``autoshard-cluster``."""

from __future__ import annotations

import sys

from autoshard.cluster.cli import main

if __name__ == "__main__":
    sys.exit(main())
