"""ocra report: one page about a training run."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import Positional

from ocra.cli.main import Device, parse
from ocra.files import printable
from ocra.viz.report import report as write_report


def report(
    run: Positional[Path],
    /,
    out: Path = Path("report.html"),
    images: int = 2_000,
    device: Device | None = None,
) -> None:
    """Write one page about a training run: curves, tables, confusion, samples, scanpaths, config.

    The page is a single file that opens without network. A run may be reported on while it goes on.

    Example: ocra report runs/multimnist-3 --out report.html

    Args:
        run: Folder of the run, as 'ocra train' makes it.
        out: Page to write.
        images: Test images that the best weights are scored on; 0 leaves out what needs them.
        device: Where to compute: cpu, cuda or mps.
    """
    written = write_report(run, out, images=images, device=device)
    print(printable(f"The report is in {written}; open it in a browser."))


def main(args: list[str]) -> None:
    """Run `ocra report` with these arguments."""
    parse(report, args, "ocra report")
