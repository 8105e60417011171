"""Measure speed and memory of every main preset on this machine and record them: python benchmarks/speed.py [PRESET …]

In float32 and, where that is faster, in bfloat16; about ten minutes on a machine that does nothing else. Named presets
replace only their own rows in benchmarks/results/speed.json, each of which was measured beside its own matrix product.
To look without recording: ocra bench, or make bench.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from ocra.benchmark import FORMULA, MAIN_PRESETS, MODES, measure_all, measure_data, measure_scaling
from ocra.errors import OcraError
from ocra.files import write_json_atomically
from ocra.reproduce.release import publish

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 8.0  # for each row
RESULT = ROOT / "benchmarks" / "results" / "speed.json"


def main(presets: list[str]) -> None:
    """Measure these presets, or all with the data and how the cost grows, and write what follows from it."""
    found = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {"rows": []}
    old = [row for row in found["rows"] if presets and row["preset"] not in presets]
    rows = measure_all(
        presets or MAIN_PRESETS,
        MODES,
        seconds=SECONDS,
        precision="both",
        progress=lambda line: print(f"measuring {line} …", flush=True),
    )
    found.update(formula=FORMULA, rows=[*old, *map(asdict, rows)])
    if not presets:
        found.update(data_images_per_second=measure_data(), scaling_step_ms=measure_scaling())
    write_json_atomically(RESULT, found)
    publish(ROOT)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OcraError as error:
        sys.exit(str(error))
