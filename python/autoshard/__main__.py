"""``python -m autoshard doctor``."""

from __future__ import annotations

import sys

from autoshard.cli import doctor


def main() -> int:
    """Run the command that is named.

    Returns:
        The exit code.
    """
    command, *arguments = sys.argv[1:] or [""]
    if command == "doctor":
        return doctor.main(arguments)
    print("usage: python -m autoshard doctor [--timeout SECONDS]", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
