"""Measure speed and memory of every main preset on this machine, with how the cost grows: `make bench`.

The same as `ocra bench --scaling`. With --record the figures go to benchmarks/results/speed.json; a run narrowed by
--preset or --mode replaces only its own rows there, each of which was measured beside its own matrix product.
"""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from ocra.cli.bench import main
from ocra.cli.main import guarded
from ocra.files import write_json_atomically

RESULT = Path(__file__).parent / "results" / "speed.json"


def recorded(words: list[str]) -> dict[str, Any]:
    """What is recorded so far, with what a benchmark run with these words finds."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        main(["--json", *words])
    found = json.loads(output.getvalue())
    before = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {"rows": []}
    rows = {(row["preset"], row["mode"]): row for row in [*before["rows"], *found["rows"]]}
    return {**before, **{key: value for key, value in found.items() if value}, "rows": list(rows.values())}


def run(words: list[str]) -> None:
    """Measure, and show or keep what was found."""
    narrowed = [word for word in words if word != "--record"]
    if "--record" in words:
        write_json_atomically(RESULT, recorded(narrowed))
        print(f"Wrote {RESULT}.")
    else:
        main(["--scaling", *narrowed])


if __name__ == "__main__":
    sys.exit(guarded(lambda: run(sys.argv[1:])))
