"""Files that are either wholly written or not there at all, and JSON that is read or named as broken."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import OcraError


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path` to write to; it replaces `path` if the block ends well.

    The temporary file is in the same folder, so that the replacement is a rename: a reader, or a run that was
    stopped half-way, never sees part of a file.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
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
    except (OSError, UnicodeDecodeError) as error:
        raise OcraError(f"{path} could not be read: {error}.") from None
    except json.JSONDecodeError as error:
        raise OcraError(f"{path} is not valid JSON (line {error.lineno}): {error.msg}.") from None


def _umask() -> int:
    """The process's umask, which mkstemp ignores and a shared cache folder needs."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
