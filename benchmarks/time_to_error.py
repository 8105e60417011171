"""Images and CPU seconds until multimnist-3 first has 12.25 % exact error.

    python benchmarks/time_to_error.py RUN [--out FILE]

The authors' program had 12.25 % on its test set after 2.7 M images. Ours is read from the validations of a
run (log.jsonl, or the recorded result): averaged weights on a few thousand images made from 6,000 MNIST
digits that are never trained on. No weights are kept from that moment, so it is a validation error, not a
test error; the script says so, and compares the two at the end of the run, where both are known.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tyro.conf import Positional

from ocra.cli.main import guarded, parse
from ocra.errors import OcraError
from ocra.reproduce.groups import test_of
from ocra.reproduce.milestones import AUTHORS_ERROR, AUTHORS_IMAGES, is_comparable, milestone
from ocra.reproduce.plots import until_error
from ocra.reproduce.results import Result, from_run, read_result
from ocra.viz.style import save_figure


def main(
    run: Positional[Path],
    /,
    error: float = 100 * AUTHORS_ERROR,
    out: Path | None = None,
) -> None:
    """Say when a run first had an error, and draw its curve if asked to.

    Args:
        run: Folder of a run, or the file of a recorded result.
        error: The error, in percent.
        out: A picture to draw: .svg, .png or .pdf.
    """
    result = read_result(run) if run.suffix == ".json" else from_run(run)
    print(describe(result, error / 100))
    if out is not None:
        save_figure(until_error(result, error / 100), out)
        print(f"{out} drawn")


def describe(result: Result, error: float) -> str:
    """What the run says about this error, in sentences."""
    if not result.validation:
        raise OcraError(f"The run {result.name} has no validation yet.")
    lowest = min(point[1] for point in result.validation)
    found = milestone(result, error)
    if found is None:
        return (
            f"{result.name} has not had {error:.2%} yet: its lowest validation error is {lowest:.2%}, "
            f"after {result.images:,} images and {result.cpu_seconds:,.0f} CPU seconds."
        )
    how = "by the share of images, as the log has no CPU seconds" if found.estimated else "from the log"
    lines = [
        f"{result.name} first had at most {error:.2%} exact validation error ({found.error:.2%}) after "
        f"{found.images:,} images and {found.cpu_seconds:,.0f} CPU seconds ({how})."
    ]
    if result.start_from:
        lines.append(f"It started from the weights {result.start_from}, whose own images are not counted.")
    elif abs(error - AUTHORS_ERROR) < 1e-9 and is_comparable(result):
        lines.append(
            f"The authors' program needed {AUTHORS_IMAGES:,} images for that on its test set (quoted)."
        )
    test = test_of(result)
    if test is not None:
        lines.append(
            f"For comparison, the best weights: validation {lowest:.2%}, test {test['exact_error']:.2%} "
            f"on {test['n']:,} images."
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(guarded(lambda: parse(main, sys.argv[1:], "python benchmarks/time_to_error.py")))
