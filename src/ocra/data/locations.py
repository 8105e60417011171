"""Where data is looked for, and where the package keeps what it makes."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The package's own folder for downloads and prepared data: $OCRA_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("OCRA_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "ocra"


def search_folders(name: str, root: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders that may hold the data set `name`, best first.

    A root that was asked for is the only place: other data in its stead would be a surprise.
    """
    if root is not None:
        given = Path(root).expanduser()
        return [given, given / name]
    folders = []
    if shared := os.environ.get("OCRA_DATA"):
        folders = [Path(shared).expanduser() / name, Path(shared).expanduser()]
    return [*folders, cache_folder() / name]
