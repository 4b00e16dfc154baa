"""``python -m autoshard``: the command ``autoshard``."""

from __future__ import annotations

import sys

from autoshard.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
