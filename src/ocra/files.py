"""Files that are wholly written or not there at all; JSON, CSV and text from files of anybody; where data lies."""

import csv
import difflib
import errno
import io
import json
import os
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ocra.errors import OcraError


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path` to write to; it replaces `path` if the block ends well.

    The temporary file is in the same folder, so that the replacement is a rename: a reader, or a run that was
    stopped half-way, never sees part of a file.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next(place for place in target.parents if place.exists())
        raise NotADirectoryError(errno.ENOTDIR, f"{file} is a file, not a folder", str(target)) from None
    handle, name = tempfile.mkstemp(
        dir=target.parent, prefix=f".{target.name}.", suffix=".part" + target.suffix
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` to `path`, all of it or nothing."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_text_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8 to `path`, all of it or nothing."""
    write_bytes_atomically(path, text.encode("utf-8"))


def write_json_atomically(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON to `path`, all of it or nothing."""
    write_text_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The value of a JSON file; what cannot be read or parsed is named in one sentence."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise OcraError(f"{path} does not exist.") from None
    except OSError as error:
        raise OcraError(f"{path} could not be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise OcraError(f"{path} is no JSON file: it holds no UTF-8 text.") from None
    except json.JSONDecodeError as error:
        raise OcraError(f"{path} is not valid JSON (line {error.lineno}): {error.msg}.") from None
    except (ValueError, RecursionError):  # Python's own limits on what it parses
        raise OcraError(
            f"{path} is no JSON file for this program: it is nested too deep, or has too long a number."
        ) from None


def printable(text: str) -> str:
    """Text from a file (class names, file names) without characters that steer a terminal or cannot be written."""
    return "".join(letter for letter in text if unicodedata.category(letter)[0] != "C")


def csv_cell(text: str) -> str:
    """Text for a cell of a CSV file; with an apostrophe before it where a spreadsheet would take it for a formula."""
    risky = text[:1] in ("=", "+", "-", "@") or unicodedata.category(text[:1] or " ")[0] == "C"
    return f"'{text}" if risky else text


def rows_to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as the text of a CSV file; a column for each name that any of them has, in the order of appearance."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow({k: csv_cell(v) if isinstance(v, str) else v for k, v in row.items()})
    return text.getvalue()


def unknown_option(name: str, known: Iterable[str], prefix: str = "") -> OcraError:
    """What to say of an option in a file that there is not, with the one that may have been meant."""
    near = difflib.get_close_matches(name, list(known), 1)
    hint = f"did you mean {prefix}{near[0]}?" if near else "was the file written by a newer version?"
    return OcraError(f"There is no option {prefix}{name}; {hint}")


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


def _umask() -> int:
    """The process's umask, which mkstemp ignores and a shared cache folder needs."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def cores() -> int:
    """Cores this process may use, which in a container may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
