"""Hooks of the documentation site (`make docs`): what lies outside of docs/ is shown in it too.

Links are written so that they work where the files lie. On the site, a page of the project's top folder becomes a page
of the site, and a link to a source file leads to a page that shows that file.
"""

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages outside of docs/, and where they are on the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside, and one for each file that a page links to."""
    for outside, inside in OUTSIDE.items():
        files.append(File.generated(config, inside, abs_src_path=str(ROOT / outside)))
    linked = {
        place
        for page in files.documentation_pages()
        if page.src_uri.endswith(".md")
        for path, _ in LINK.findall(page.content_string)
        if not (place := _place(page.src_uri, path)).startswith("docs/") and (ROOT / place).is_file()
    }
    for place in sorted(linked - OUTSIDE.keys() - {"README.md"}):
        text = (ROOT / place).read_text("utf-8")
        content = f"# {place}\n\n````{PurePosixPath(place).suffix[1:]}\n{text}\n````\n"
        files.append(File.generated(config, _shown_at(place), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links that leave docs/ lead to the pages added above; folders have none."""
    if page.file.src_uri.startswith("source/"):
        return markdown
    here = PurePosixPath(page.file.src_uri).parent

    def rewritten(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        place = _place(page.file.src_uri, path)
        if place.startswith("docs/"):
            target = place.removeprefix("docs/")
        elif (ROOT / place).is_dir():
            return "]"
        else:
            target = OUTSIDE.get(place) or ("index.md" if place == "README.md" else _shown_at(place))
        return f"]({os.path.relpath(target, here)}{anchor})"

    return LINK.sub(rewritten, markdown)


def _place(page: str, link: str) -> str:
    """Where a link of a page leads to, from the project's top folder."""
    origin = {inside: outside for outside, inside in OUTSIDE.items()}.get(page, f"docs/{page}")
    return os.path.normpath(PurePosixPath(origin).parent / link)


def _shown_at(place: str) -> str:
    return f"source/{place.replace('/', '-')}.md"
