"""Measure speed and memory of every main preset on this machine, with how the cost grows: `make bench`.

The same as `ocra bench --scaling`, and writes the figures to benchmarks/results/speed.json with --record.
"""

import contextlib
import io
import platform
import sys
from pathlib import Path

from ocra.commands.bench import main
from ocra.files import write_text_atomically

RESULT = Path(__file__).parent / "results" / "speed.json"

if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--record"]
    if "--record" not in sys.argv:
        main(["--scaling", *words])
    else:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            main(["--scaling", "--json", *words])
        RESULT.parent.mkdir(exist_ok=True)
        write_text_atomically(RESULT, output.getvalue())
        print(f"Wrote {RESULT} on {platform.processor() or platform.machine()}.")
