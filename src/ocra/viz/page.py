"""A page that stands alone: text, tables and pictures in one file, readable on a phone and in the dark."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape

from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light dark;
  --paper: #fbfbfc; --card: #fff; --ink: #1f2933; --muted: #6b7280; --line: #d5d9df;
  --blue: #0072b2; --vermillion: #d55e00; --green: #009e73; --purple: #b65f8f; --orange: #c98a00; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14181d; --card: #1d232a; --ink: #e8ebef; --muted: #9aa4b0; --line: #39424d;
  --blue: #56b4e9; --vermillion: #ff8c42; --green: #2fc79a; --purple: #e0a0c4; --orange: #f0b429; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .5rem 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .8rem; }
p { margin: .4rem 0; }
.muted, figcaption, caption { color: var(--muted); font-size: .9rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem;
  margin: 1.2rem 0; }
.card, figure, details { background: var(--card); border: 1px solid var(--line); border-radius: .7rem;
  padding: .8rem 1rem; }
.card b { display: block; font-size: 1.45rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.card span { color: var(--muted); font-size: .85rem; display: block; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: .75rem; }
figure { margin: 0 0 .75rem; } .two figure { margin: 0; } figcaption { margin-bottom: .4rem; }
figure svg { display: block; width: 100%; height: auto; }
figure img { display: block; width: clamp(var(--least), 100%, var(--most)); max-width: none; height: auto;
  background: #fff; border-radius: .35rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
caption { text-align: left; padding-bottom: .4rem; }
th, td { padding: .28rem .9rem .28rem 0; text-align: left; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; } tr:last-child td { border-bottom: 0; }
table.heat { border-collapse: separate; border-spacing: 2px; margin: .6rem 0; }
table.heat td { text-align: center; padding: .3rem .4rem; min-width: 2.6rem; border: 0; border-radius: .25rem;
  background: color-mix(in srgb, var(--c, transparent) calc(var(--v, 0) * 100%), transparent); }
table.heat th { border: 0; padding: .2rem .45rem; text-align: center; font-weight: 600; }
details { padding: .6rem 1rem; margin: .6rem 0; }
summary { cursor: pointer; font-weight: 600; }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """A whole page from parts that are HTML already."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A heading and what belongs to it; nothing where nothing does."""
    content = "\n".join(part for part in parts if part)
    return f"<section><h2>{escape(title)}</h2>\n{content}</section>" if content else ""


def cards(figures: Sequence[tuple[str, str, str]]) -> str:
    """Figures to see at a glance: name, value, remark."""
    made = [
        '<div class="card">'
        f"<span>{escape(name)}</span><b>{escape(value)}</b><span>{escape(note)}</span></div>"
        for name, value, note in figures
    ]
    return f'<div class="cards">{"".join(made)}</div>'


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; columns after the first are numbers."""
    kinds = ["", *[' class="n"'] * (len(head) - 1)]
    top = "".join(f"<th{kind}>{escape(cell)}</th>" for kind, cell in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def heat_table(rows: Sequence[str], columns: Sequence[str], shares: Sequence[Sequence[float]]) -> str:
    """Shares of each row in percent; what lies off the diagonal is shaded by how much it is."""
    wrong = max((v for i, row in enumerate(shares) for j, v in enumerate(row) if i != j), default=0.0) or 1.0
    head = "<th></th>" + "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = []
    for i, row in enumerate(shares):
        cells = []
        for j, share in enumerate(row):
            colour = "var(--blue)" if i == j else "var(--vermillion)"
            depth = 0.18 if i == j else 0.75 * share / wrong
            text = f"{100 * share:.1f}" if share >= 0.0005 else "·"
            cells.append(f'<td style="--c:{colour};--v:{depth:.3f}">{text}</td>')
        body.append(f"<tr><th>{escape(rows[i])}</th>{''.join(cells)}</tr>")
    return (
        '<div class="scroll"><table class="heat"><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def drawing(caption: str, svg: str) -> str:
    """A figure that is SVG already."""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"


def photograph(caption: str, figure: Figure, dpi: int = 130) -> str:
    """A figure as a picture inside the page, as wide as the page; on a narrow screen it is moved sideways."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    content = base64.b64encode(file.getvalue()).decode("ascii")
    inches = float(figure.get_size_inches()[0])
    size = f"--least:{min(4.4 * inches, 52):.0f}rem;--most:{7 * inches:.0f}rem"
    return (
        f'<figure style="{size}"><figcaption>{escape(caption)}</figcaption><div class="scroll">'
        f'<img alt="{escape(caption)}" src="data:image/png;base64,{content}"></div></figure>'
    )


def side_by_side(parts: Iterable[str]) -> str:
    """Two in a row where there is room."""
    return f'<div class="two">{"".join(parts)}</div>'


def folded(title: str, content: str) -> str:
    """Something to open."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"
