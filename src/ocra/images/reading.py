"""Image files as people have them: found, opened safely, made upright, turned into plain numbers."""

from __future__ import annotations

import glob
import io
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image
from PIL.Image import Transpose

from ocra.errors import OcraError, UsageError

# Formats that Pillow decodes by itself. EPS and the like would start other programs.
FORMATS = ("PNG", "JPEG", "MPO", "GIF", "WEBP", "BMP", "TIFF", "PPM", "TGA", "ICO", "JPEG2000", "AVIF", "PCX")
ENDINGS = {
    ".png", ".apng", ".jpg", ".jpeg", ".jpe", ".gif", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".pnm", ".tga", ".ico", ".jp2", ".j2k", ".avif", ".pcx",
}  # fmt: skip
MOST_PIXELS = 120_000_000
MOST_BYTES = 500_000_000
SMALLEST_SIDE = 8
# Larger images are averaged down on reading: the models see 36 to 100 pixels.
LONGEST_SIDE = 2048
STDIN = "-"
DEEP_WHITE = 65535
# What white may be in a file of 16 bits; cameras and microscopes often use fewer of them.
WHITES = (255, 1023, 4095, 16383, DEEP_WHITE)

# What undoes each of EXIF's orientations.
_UPRIGHT = {
    2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90,
}  # fmt: skip


@dataclass(frozen=True)
class UserImage:
    """The first frame of an image of a user, upright, nothing transparent."""

    name: str
    """File name, for messages."""
    pixels: NDArray[np.float32]
    """[rows, columns, 3], or [rows, columns] for 16-bit and float greys; 0 to 1."""
    width: int
    """Width of the image as the user sees it, in pixels."""
    height: int
    """Height of the image as the user sees it, in pixels."""
    reduction: int = 1
    """Pixels of the user's image along one side of a pixel of `pixels`."""
    white: float = 1.0
    """What 1 is in the file's own range: below 1 where a 16-bit file holds 8, 10, 12 or 14 bits."""


def find_images(sources: Iterable[str]) -> Iterator[str]:
    """The files that files, patterns, folders (searched with their subfolders) and `-` stand for, in order.

    A name that leads nowhere is passed on, so that opening it says what is wrong and the other files go on.
    """
    for source in sources:
        if source == STDIN:
            yield source
        elif os.path.isdir(source):
            inside = sorted(str(path) for path in Path(source).rglob("*") if _is_image(path))
            yield from inside or [source]
        elif not os.path.exists(source) and glob.has_magic(source):
            matches = sorted(glob.glob(source, recursive=True))
            yield from [match for match in matches if os.path.isfile(match)] or [source]
        else:
            yield source


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS and not path.name.startswith(".") and path.is_file()


def read_image(source: str | os.PathLike[str] | bytes, name: str | None = None) -> UserImage:
    """Open an image file, `-` for standard input, or the bytes of one; say in a sentence what is wrong."""
    shown = name or ("standard input" if source == STDIN or isinstance(source, bytes) else os.fspath(source))
    if source == STDIN:
        source = sys.stdin.buffer.read(MOST_BYTES + 1)
    if isinstance(source, bytes):
        _check_length(shown, len(source))
        return _read(io.BytesIO(source), shown)
    if os.path.isdir(source):
        if any(_is_image(path) for path in Path(os.fspath(source)).rglob("*")):
            raise OcraError(
                f"{shown} is a folder; give one of the images in it, or use 'ocra predict {shown}'."
            )
        raise OcraError(
            f"{shown} is a folder without images; their names end in {', '.join(sorted(ENDINGS))}."
        )
    try:
        with open(source, "rb") as file:
            if not os.path.isfile(source):  # a pipe has no length and no way back
                return read_image(file.read(MOST_BYTES + 1), shown)
            _check_length(shown, os.path.getsize(source))
            return _read(file, shown)
    except FileNotFoundError:
        raise OcraError(f"{shown} does not exist.") from None
    except OSError as error:
        raise OcraError(f"{shown} cannot be opened: {error.strerror or error}.") from None


def _check_length(name: str, length: int) -> None:
    if length == 0:
        raise OcraError(f"{name} is empty.")
    if length > MOST_BYTES:
        raise OcraError(f"{name} is larger than {MOST_BYTES // 10**6} MB; make it smaller first.")


def _read(file: io.IOBase, name: str) -> UserImage:
    """Decode a file without the decoder's warnings (odd metadata, large sizes): what matters is checked here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = _open(file, name)
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise _too_large(name, width, height)
        if min(width, height) < SMALLEST_SIDE:
            raise OcraError(
                f"{name} has {width} × {height} pixels; at least {SMALLEST_SIDE} × {SMALLEST_SIDE} are needed."
            )
        try:
            return _decode(image, name)
        except OcraError:
            raise
        except MemoryError:
            raise _too_large(name, width, height) from None
        except Exception as error:  # whatever broken pixels make a decoder raise
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise OcraError(f"{name} is damaged and cannot be read to the end ({reason}).") from None


def _open(file: io.IOBase, name: str) -> Image.Image:
    """Read the header of an image in one of the known formats."""
    Image.init()
    known = [kind for kind in FORMATS if kind in Image.OPEN]
    try:
        return Image.open(file, formats=known)  # type: ignore[arg-type]
    except Image.DecompressionBombError:
        raise _too_large(name) from None
    except Exception:  # decoders raise SyntaxError, struct.error, KeyError ... on bad headers
        formats = "PNG, JPEG, TIFF, WebP, GIF, BMP …"
        raise OcraError(f"{name} is not an image in a known format ({formats}).") from None


def _too_large(name: str, width: int = 0, height: int = 0) -> OcraError:
    size = f"has {width} × {height} pixels" if width else "is too large"
    return OcraError(
        f"{name} {size}; the limit is {MOST_PIXELS // 10**6} million pixels. Make it smaller first."
    )


def _decode(image: Image.Image, name: str) -> UserImage:
    """Load the first frame, average it down if it is large, turn it upright."""
    image.seek(0)
    image.load()
    orientation = _orientation(image)
    image, white = _with_plain_numbers(image, name)
    reduction = -(-max(image.size) // LONGEST_SIDE)
    width, height = image.size
    if reduction > 1:
        image = image.reduce(reduction)
    if orientation in _UPRIGHT:
        image = image.transpose(_UPRIGHT[orientation])
        if orientation >= 5:
            width, height = height, width
    pixels = np.asarray(image, dtype=np.float32)
    if image.mode != "F":
        pixels = pixels / np.float32(255)
    if image.mode == "RGBA":
        pixels = _on_paper(pixels)
    return UserImage(name, np.ascontiguousarray(pixels), width, height, reduction, white)


def _orientation(image: Image.Image) -> int:
    """EXIF's number for how the camera was held; 1 (upright) where that cannot be read."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # broken metadata must not keep a good image from being read
        return 1


def _with_plain_numbers(image: Image.Image, name: str) -> tuple[Image.Image, float]:
    """The image as RGBA (transparent), F (0 to 1; 16-bit and float greys) or RGB, and `UserImage.white`."""
    white = 1.0
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image, dtype=np.float32)
        if not np.isfinite(values).all():
            raise OcraError(f"{name} holds pixels that are not numbers (NaN or infinite).")
        lowest, highest = float(values.min()), float(values.max())
        if lowest < 0 or (image.mode == "F" and highest > 1) or highest > DEEP_WHITE:
            values = (values - np.float32(lowest)) / np.float32(max(highest - lowest, 1e-12))
        elif image.mode != "F":
            lightest = next(white for white in WHITES if highest <= white)
            values, white = values / np.float32(lightest), lightest / DEEP_WHITE
        return Image.fromarray(values.astype(np.float32)), white
    if "transparency" in image.info or image.mode in ("LA", "La", "PA", "RGBA", "RGBa"):
        return image.convert("RGBA"), white
    return image.convert("RGB"), white


def _on_paper(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """[rows, columns, 3] from [rows, columns, 4] with alpha: laid on paper that the ink stands out from."""
    colour, alpha = pixels[..., :3], pixels[..., 3:]
    visible = float(alpha.sum())
    ink = float((colour.mean(2, keepdims=True) * alpha).sum()) / visible if visible else 0.0
    paper = np.float32(0 if ink > 0.5 else 1)
    return colour * alpha + paper * (1 - alpha)


def endings(path: str | os.PathLike[str], allowed: Iterable[str]) -> str:
    """The ending of an output file in lower case; refused if it is not among the allowed ones."""
    ending = Path(path).suffix.lower()
    if ending not in allowed:
        raise UsageError(f"{path} must end in {', '.join(allowed)}: the ending says what to write.")
    return ending
