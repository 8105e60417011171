"""A further process of a run, started by `process_group`: python -m ocra.training.worker DEVICE."""

from __future__ import annotations

import sys
import warnings

from ..errors import OcraError
from .distribution import PeerLost
from .loop import Diverged
from .start import take_part


def main() -> int:
    """Train along. The first process speaks to the user, this one only of what went wrong here alone."""
    warnings.simplefilter("ignore")
    try:
        take_part(sys.argv[1])
    except (PeerLost, Diverged, KeyboardInterrupt):
        return 1
    except OcraError as error:
        print(f"error in a further process of the run: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
