"""Rewrite the lab's pages: run the command on each, keep what was written by hand, fill in its figures.

    python docs/lab/make_pages.py                    # every page
    python docs/lab/make_pages.py crowding set-size  # these
    python docs/lab/make_pages.py --figures          # run nothing, only fill in figures from the tables
    python docs/lab/make_pages.py --people mnist.json  # the comparison with people alone, in README.md

Written by hand are the paragraphs between "Method" and the image. A figure in them, or in README.md, is a cell of the
page's table: <!--=cluttered-5; other class; 6-->13 %<!--/--> is the mean of the one row that has these cells, and
<!--=crowding: …--> that of another page. "@ title" takes another column than the mean.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIGURE = re.compile(r"<!--=\s*(?:([\w-]+):\s*)?([^@]+?)(?:\s*@\s*(.+?))?\s*-->(.*?)<!--/-->", flags=re.S)
UNITS = {"information gain": ", bits", "DTW distance": ", pixels (lower is more similar)"}
COMMAND = re.compile(r"^ocra lab run (.+)$", flags=re.M)


def rows(page: str) -> list[dict[str, str]]:
    """The rows of a page's table, by their titles."""
    found = re.findall(r"^\|(.*)\|$", page, flags=re.M)
    lines = [[cell.strip() for cell in line.split("|")] for line in found]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]] if lines else []


def value(page: str, cells: str, column: str | None) -> str:
    """The figure of the one row that has these cells, as it stands in a sentence."""
    wanted = [" ".join(cell.split()) for cell in cells.split(";")]
    conditions = [(row, [cell for title, cell in row.items() if title != "n"]) for row in rows(page)]
    found = [row for row, cells_of_row in conditions if all(cell in cells_of_row for cell in wanted)]
    if len(found) != 1:
        raise SystemExit(f"{len(found)} rows of the table have the cells {wanted}; a figure is of one row.")
    mean = float(found[0][column or "mean"])
    if column or found[0]["measure"].startswith("glimpses"):
        return f"{mean:.1f}" if mean >= 2 else f"{mean:.2f}"
    return f"{100 * mean:.1f} %" if 0 < mean < 0.0995 else f"{100 * mean:.0f} %"


def filled(text: str) -> str:
    """A page with the figures of its sentences as they are in the tables."""

    def figure(match: re.Match[str]) -> str:
        page = (HERE / f"{match[1]}.md").read_text("utf-8") if match[1] else text
        start = match[0][: match[0].index("-->") + 3]
        return f"{start}{value(page, match[2], match[3])}<!--/-->"

    return FIGURE.sub(figure, text)


def wrapped(paragraph: str) -> str:
    """A paragraph in lines of up to 120 characters, none of which begins with a comment (that would end it)."""
    if not paragraph.startswith(("**", *map(chr, range(65, 91)))):
        return paragraph
    one_line = " ".join(paragraph.split())
    glued = FIGURE.sub(lambda match: match[0].replace(" ", "\0"), one_line)
    glued = re.sub(r" (?=\S*<!--=)", "\0", glued)
    return textwrap.fill(glued, 120, break_long_words=False, break_on_hyphens=False).replace("\0", " ")


def rewritten(page: str, made: str) -> str:
    """A page as the command made it, with the paragraphs and the command of the page as it was."""
    by_hand = page[page.index("\n\n", page.index("\n**Method.**")) : page.index("\n![")].strip()
    command = re.search(r"```sh\n.*?```", page, flags=re.S)
    assert command is not None
    head, image, tail = re.split(r"^(!\[.*)$", made, maxsplit=1, flags=re.M)
    parts = [*head.strip().split("\n\n"), *by_hand.split("\n\n")]
    return "\n\n".join([*map(wrapped, parts), image, command[0], tail.strip()]) + "\n"


def remake(file: Path) -> None:
    """Run a page's command and write page and figure."""
    from ocra.cli.main import main

    page = file.read_text("utf-8")
    command = COMMAND.search(page)
    assert command is not None
    with tempfile.TemporaryDirectory() as folder:
        main(["lab", "run", *shlex.split(command[1]), "--out", folder])
        made = (Path(folder) / "page.md").read_text("utf-8")
        shutil.copy(Path(folder) / f"{file.stem}.png", file.with_suffix(".png"))
    file.write_text(rewritten(page, made), "utf-8")


def write_comparison_with_people(clicks: str, weights: str = "mnist-6") -> None:
    """Write tables and figure of the comparison with people into README.md."""
    from ocra.lab.human import compare_with_people, read_attention_mnist
    from ocra.model.weights import content_hash, resolve
    from ocra.reproduce import tables

    found = compare_with_people(weights, read_attention_mnist(clicks))
    with tempfile.TemporaryDirectory() as folder:
        found.save(folder)
        shutil.copy(Path(folder) / "attention-mnist.png", HERE)
    cells: dict[str, dict[str, str]] = {}
    for row in found.similarity:
        between = f" ({row['low']:.3f} to {row['high']:.3f})" if row["who"] == "model" else ""
        cells.setdefault(row["measure"], {})[row["who"]] = f"{row['mean']:.3f}{between}"
    order = ("model", "ceiling", "baseline", "model at another digit")
    alike = [[measure + UNITS.get(measure, ""), *(by[who] for who in order)] for measure, by in cells.items()]
    right = {(row["who"], row["glimpse"]): f"{100 * row['accuracy']:.1f}" for row in found.accuracy}
    last = {who: max(glimpse for name, glimpse in right if name == who) for who in ("model", "people")}
    answers = [
        [name, right[who, 1], right[who, 4], right[who, last[who]]]
        for who, name in (("people", "people, pieces uncovered"), ("model", f"`{weights}`, glimpses"))
    ]
    titles = (
        f"`{weights}@{content_hash(resolve(weights))}` against other people's clicks on the same digit | "
        f"`{weights}` (95 % interval) | people (ceiling) | people on another digit (baseline) | "
        f"`{weights}` on another digit"
    )
    both = (
        tables.markdown_table(titles, alike, len(order) + 1),
        tables.markdown_table("right answers, % | after 1 | after 4 | after all", answers),
    )
    readme = HERE / "README.md"
    block = {"attention-mnist": "\n" + tables.sections(*both)}
    readme.write_text(tables.filled(readme.read_text("utf-8"), block), "utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--people"]:
        write_comparison_with_people(sys.argv[2])
        sys.exit()
    names = [name for name in sys.argv[1:] if name != "--figures"]
    pages = [file for file in sorted(HERE.glob("*.md")) if "\n**Method.**" in file.read_text("utf-8")]
    for file in pages:
        if "--figures" not in sys.argv and (not names or file.stem in names):
            remake(file)
    for file in [*pages, HERE / "README.md"]:
        text = filled(file.read_text("utf-8"))
        parts = [wrapped(part) if FIGURE.search(part) else part for part in text.split("\n\n")]
        file.write_text("\n\n".join(parts), "utf-8")
