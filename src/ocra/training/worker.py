"""A further process of a run, started by `distribution.process_group`: python -m ocra.training.worker DEVICE."""

from __future__ import annotations

import sys

from ..errors import OcraError
from .distribution import PeerLost
from .loop import take_part


def main() -> int:
    """Train along. Only the first process speaks to the user, except of what went wrong here alone."""
    try:
        take_part(sys.argv[1])
    except (PeerLost, KeyboardInterrupt):
        return 1
    except OcraError as error:
        print(f"error in a further process of the run: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
