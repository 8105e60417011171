"""Files that visitors send, between their arrival and their first use.

They are kept in memory only, each under a token of its own: nothing stays behind however the server ends, and two
visitors who send the same file do not share it.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from threading import Lock

from ocra.errors import OcraError

MB = 1_000_000
MOST_BYTES = 10 * MB
MOST_BYTES_OF_ONE = 30 * MB
MOST_BYTES_OF_ALL = 100 * MB
KEPT_SECONDS = 60.0


@dataclass
class _File:
    visitor: str
    size: int
    expires: float
    content: bytes | None = None
    """None while it is arriving."""


class Uploads:
    """Files by token, with a quota for each visitor and for all together."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._lock = Lock()

    def reserve(self, visitor: str, size: int) -> str:
        """Room for a file of this size: the token it will be taken by."""
        if not 0 < size <= MOST_BYTES:
            raise OcraError(f"The file must not be empty, nor larger than {MOST_BYTES // MB} MB.")
        with self._lock:
            now = time.monotonic()
            self._files = {token: file for token, file in self._files.items() if file.expires > now}
            of_one = sum(file.size for file in self._files.values() if file.visitor == visitor)
            of_all = sum(file.size for file in self._files.values())
            if of_one + size > MOST_BYTES_OF_ONE or of_all + size > MOST_BYTES_OF_ALL:
                raise OcraError("Too many files are on their way; try again in a minute.")
            token = secrets.token_urlsafe(16)
            self._files[token] = _File(visitor, size, now + KEPT_SECONDS)
            return token

    def fill(self, token: str, content: bytes) -> None:
        """Put a file into the room that was reserved for it."""
        with self._lock:
            if token in self._files:
                self._files[token].content = content

    def drop(self, token: str) -> None:
        """Give up the room of a file that did not arrive."""
        with self._lock:
            self._files.pop(token, None)

    def take(self, token: str) -> bytes:
        """The content of a file, which is forgotten."""
        with self._lock:
            file = self._files.pop(token, None)
        if file is None or file.content is None or file.expires < time.monotonic():
            raise OcraError("The file is not here any more; choose it again.")
        return file.content
