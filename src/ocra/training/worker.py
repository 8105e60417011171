"""A further process of a run, started by `process_group`: python -m ocra.training.worker DEVICE PARENT."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings

from ocra.errors import OcraError
from ocra.training.distributed import PeerLost
from ocra.training.run import take_part
from ocra.training.trainer import Diverged

LOOK_AFTER_PARENT = 1.0
"""Seconds between two looks at whether the first process is still there."""


def main() -> int:
    """Train along. The first process speaks to the user, this one only of what went wrong here alone."""
    warnings.simplefilter("ignore")
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    try:
        take_part(sys.argv[1])
    except (PeerLost, Diverged, KeyboardInterrupt):
        return 1
    except OcraError as error:
        print(f"error in a further process of the run: {error}", file=sys.stderr)
        return 1
    return 0


def _end_with(parent: int) -> None:
    """End at once when the process that started this one has ended, be it before the two have met."""
    while os.getppid() == parent:
        time.sleep(LOOK_AFTER_PARENT)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
