"""Image files of all kinds, good and bad, and what is made of them."""

import io
import os
import struct
import threading
import zlib

import numpy as np
import pytest
from PIL import Image
from tiny import centroid, dot_picture, ink_picture

from ocra.config import ModelConfig
from ocra.data import SVHN, ClutteredMNIST, FolderTask, MultiMNIST
from ocra.errors import OcraError
from ocra.images.fitting import fit_pixels, prepare
from ocra.images.reading import find_images, read_image

DIGITS = MultiMNIST.preprocessing
MODEL = ModelConfig()


def saved(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def grey(source):
    return source.pixels if source.pixels.ndim == 2 else source.pixels.mean(2)


def test_an_image_rotated_by_exif_is_upright():
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned a quarter
    source = read_image(saved(dot_picture((60, 40), (50, 10)), "JPEG", exif=exif))
    assert (source.width, source.height) == (40, 60)
    x, y = centroid(grey(source))
    assert (x, y) == pytest.approx((40 - 1 - 10, 50), abs=0.7)


def test_sixteen_bits_are_scaled_to_one():
    values = np.full((20, 20), 65535, dtype=np.uint16)
    values[5:9, 5:9] = 0
    source = read_image(saved(Image.fromarray(values)))
    assert source.pixels.max() == 1 and source.pixels.min() == 0


@pytest.mark.parametrize("white", [255, 1023, 4095, 16383])
def test_sixteen_bits_of_which_fewer_are_used_keep_their_tones(white):
    values = np.linspace(0, white, 400).reshape(20, 20).astype(np.uint16)
    source = read_image(saved(Image.fromarray(values)))
    assert source.pixels.max() == 1 and source.white == white / 65535
    assert len(np.unique(source.pixels)) == len(np.unique(values))
    assert not prepare(source, MODEL, DIGITS).blank


def test_a_pipe_is_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(saved(ink_picture()),))
    writer.start()
    assert read_image(pipe).name == str(pipe)
    writer.join()


def test_cmyk_black_is_black():
    source = read_image(saved(Image.new("CMYK", (20, 20), (0, 0, 0, 255)), "TIFF"))
    assert source.pixels.max() == 0


@pytest.mark.parametrize(("ink", "paper"), [(0, 1.0), (255, 0.0)])
def test_transparent_places_become_paper_that_ink_stands_out_from(ink, paper):
    image = Image.new("RGBA", (30, 30), (ink, ink, ink, 0))
    image.paste((ink, ink, ink, 255), (10, 10, 20, 20))
    source = read_image(saved(image))
    assert grey(source)[0, 0] == paper
    assert grey(source)[15, 15] == pytest.approx(ink / 255)


def test_a_palette_with_a_transparent_colour_is_read():
    image = Image.new("P", (30, 30), 0)
    image.putpalette([255, 0, 0, 0, 0, 0])
    image.paste(1, (10, 10, 20, 20))
    source = read_image(saved(image, transparency=0))
    assert grey(source)[0, 0] == 1
    assert grey(source)[15, 15] == 0


def test_the_first_frame_of_an_animation_counts():
    first, second = dot_picture((60, 60), (10, 10)), dot_picture((60, 60), (50, 50))
    source = read_image(saved(first, "GIF", save_all=True, append_images=[second]))
    assert centroid(grey(source)) == pytest.approx((10, 10), abs=0.5)


def test_large_images_are_averaged_down_but_keep_their_size():
    source = read_image(saved(dot_picture((5000, 100), (3000, 50), 20), compress_level=1))
    assert (source.width, source.height) == (5000, 100)
    assert max(source.pixels.shape) <= 2048
    x, _ = centroid(grey(source))
    assert (x + 0.5) * source.reduction - 0.5 == pytest.approx(3000, abs=2)


def huge_png(side):
    """The beginning of a PNG that claims to be very large."""
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))


BAD = {
    "empty.png": b"",
    "text.png": b"This is no picture at all.",
    "truncated.png": saved(ink_picture())[:400],
    "truncated.jpg": saved(ink_picture(), "JPEG")[:700],
    "dot.png": saved(Image.new("L", (1, 1), 255)),
    "bomb.png": huge_png(20_000),
    "large.png": huge_png(12_000),
    "nan.tiff": saved(Image.fromarray(np.full((20, 20), np.nan, dtype=np.float32)), "TIFF"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_in_one_sentence(name, tmp_path):
    (tmp_path / name).write_bytes(BAD[name])
    with pytest.raises(OcraError) as caught:
        read_image(tmp_path / name)
    message = str(caught.value)
    assert name in message and message.endswith(".") and "\n" not in message


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(OcraError, match=r"nowhere\.png does not exist"):
        read_image(tmp_path / "nowhere.png")


def test_folders_patterns_and_files_are_found_in_order(tmp_path):
    for name in ("b.png", "a.png", "sub/c.jpg", "notes.txt", ".hidden.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = [name.removeprefix(f"{tmp_path}/") for name in find_images([str(tmp_path)])]
    assert names == ["a.png", "b.png", "sub/c.jpg"]
    assert len(list(find_images([f"{tmp_path}/*.png"]))) == 2
    assert list(find_images(["none-*.png", "-"])) == ["none-*.png", "-"]


def test_a_folder_without_images_says_so(tmp_path):
    (name,) = find_images([str(tmp_path)])
    with pytest.raises(OcraError, match="folder without images"):
        read_image(name)


@pytest.mark.parametrize(("darkest", "lightest"), [(0, 255), (0, 90), (30, 180)])
def test_an_image_of_the_models_size_is_not_changed(darkest, lightest):
    values = np.full((36, 36), darkest, dtype=np.uint8)
    values[8:28, 10:20] = np.random.default_rng(0).integers(0, lightest + 1, (20, 10))
    values[9, 11] = lightest
    prepared = prepare(read_image(saved(Image.fromarray(values))), MODEL, DIGITS)
    assert np.array_equal((prepared.image[0].numpy() * 255).round(), values)
    assert prepared.placement.to_source(3, 4) == (3, 4)


@pytest.mark.parametrize(("ink", "paper", "inverted"), [(30, 235, True), (10, 90, True), (230, 20, False)])
def test_a_light_background_is_turned_around(ink, paper, inverted):
    prepared = prepare(read_image(saved(ink_picture(ink=ink, paper=paper))), MODEL, DIGITS)
    assert ("inverted" in [step.name for step in prepared.steps]) == inverted
    assert prepared.image[0, 0, 0] < 0.1 and prepared.image.max() > 0.9


def test_inversion_can_be_forced_and_forbidden():
    source = read_image(saved(ink_picture()))
    assert prepare(source, MODEL, DIGITS, invert="no", fit="whole").image[0, 18, 0] > 0.9
    dark = read_image(saved(ink_picture(ink=235, paper=0)))
    assert "inverted" in [step.name for step in prepare(dark, MODEL, DIGITS, invert="yes").steps]


def test_grey_follows_the_formula_of_the_tasks():
    source = read_image(saved(Image.new("RGB", (36, 36), (255, 0, 0))))
    assert prepare(source, MODEL, SVHN.preprocessing, invert="no").image.mean() == pytest.approx(
        0.2989, abs=1e-4
    )


@pytest.mark.parametrize("size", [(300, 200), (50, 61), (2200, 700)])
@pytest.mark.parametrize("fit", ["content", "whole", "stretch"])
@pytest.mark.parametrize("shape", [(36, 36), (40, 64)])
def test_a_dot_is_found_again_in_the_users_image(size, fit, shape):
    at = (round(0.7 * size[0]), round(0.3 * size[1]))
    source = read_image(saved(dot_picture(size, at, radius=max(2, min(size) // 16)), compress_level=1))
    config = ModelConfig(height=shape[0], width=shape[1])
    prepared = prepare(source, config, DIGITS, fit=fit)
    place = prepared.placement.to_source(*centroid(prepared.image[0].numpy()))
    near = 0.35 * max(prepared.placement.scale) + 0.5 * source.reduction
    assert place == pytest.approx(at, abs=near)
    assert prepared.placement.to_model(*prepared.placement.to_source(3.5, 7)) == pytest.approx((3.5, 7))


def test_proportions_are_kept_and_the_rest_is_background():
    source = read_image(saved(dot_picture((200, 100), (100, 50), 30)))
    image = prepare(source, MODEL, DIGITS, fit="whole").image[0].numpy()
    assert image[:9].max() == 0 and image[27:].max() == 0
    rows, columns = np.flatnonzero(image.max(1) > 0.5), np.flatnonzero(image.max(0) > 0.5)
    assert abs(len(rows) - len(columns)) <= 1


def test_ink_gets_the_height_that_digits_have_in_training():
    for size in ((240, 180), (900, 700)):
        image = prepare(read_image(saved(ink_picture(size))), MODEL, DIGITS).image[0].numpy()
        rows = np.flatnonzero(image.max(1) > 0.4)
        columns = np.flatnonzero(image.max(0) > 0.4)
        assert 16 <= np.ptp(rows) + 1 <= 30 and np.ptp(columns) + 1 <= 31
        assert abs(rows.mean() - 17.5) < 2 and abs(columns.mean() - 17.5) < 2


def test_uneven_light_is_evened_out():
    values = np.asarray(ink_picture((400, 300)), dtype=np.float32)
    shade = np.linspace(1, 0.5, 400)[None] * np.linspace(1, 0.8, 300)[:, None]
    prepared = prepare(read_image(saved(Image.fromarray((values * shade).astype(np.uint8)))), MODEL, DIGITS)
    assert "light evened out" in [step.name for step in prepared.steps]
    image = prepared.image[0].numpy()
    assert max(image[:3].max(), image[-3:].max(), image[:, :2].max(), image[:, -2:].max()) < 0.2


def test_thin_strokes_are_thickened_and_wide_ones_are_not():
    thin = Image.new("L", (400, 400), 255)
    thin.paste(0, (150, 100, 154, 300))
    thin.paste(0, (150, 100, 260, 104))
    wide = Image.new("L", (400, 400), 255)
    wide.paste(0, (150, 100, 180, 300))
    wide.paste(0, (150, 100, 260, 130))
    names = [
        [step.name for step in prepare(read_image(saved(image)), MODEL, DIGITS).steps]
        for image in (thin, wide)
    ]
    assert "strokes thickened" in names[0] and "strokes thickened" not in names[1]
    image = prepare(read_image(saved(thin)), MODEL, DIGITS).image[0].numpy()
    assert 2 <= (image[22] > 0.5).sum() <= 4


def test_specks_do_not_count_as_ink():
    clean, dirty = ink_picture((400, 300)), ink_picture((400, 300))
    for x, y in ((5, 5), (390, 8), (12, 290)):
        dirty.putpixel((x, y), 0)
    images = [prepare(read_image(saved(image)), MODEL, DIGITS).image for image in (clean, dirty)]
    assert (images[0] - images[1]).abs().max() < 0.15


def test_digits_that_lie_apart_keep_their_size_for_a_model_of_scattered_digits():
    image = ink_picture((500, 200), "3    5")
    prepared = prepare(
        read_image(saved(image)), ModelConfig(height=100, width=100), ClutteredMNIST.preprocessing
    )
    rows = np.flatnonzero(prepared.image[0].numpy().max(1) > 0.4)
    assert 17 <= np.ptp(rows) + 1 <= 23


def test_images_for_a_folder_model_are_those_of_the_folder_task():
    source = read_image(saved(ink_picture((90, 50)).convert("RGB")))
    config = ModelConfig(channels=3, height=40, width=48, classes=3)
    prepared = prepare(source, config, FolderTask.preprocessing)
    assert np.array_equal((prepared.image.numpy() * 255).round(), fit_pixels(source.pixels, (3, 40, 48)))
    assert prepared.placement.to_source(23.5, 19.5) == pytest.approx((44.5, 24.5), abs=1)


def test_one_even_tone_is_blank():
    for tone in (0, 128, 255):
        prepared = prepare(read_image(saved(Image.new("L", (50, 50), tone))), MODEL, DIGITS)
        assert prepared.blank and prepared.image.isfinite().all()


def photographed_sheet(ink, noise, size=(300, 400)):
    """A sheet of paper, lit from one side, with ink of this contrast on it."""
    sheet = 0.75 + np.linspace(-0.15, 0.15, size[1])[None] + np.zeros(size)
    sheet[100:200, 180:195] -= ink
    sheet[100:115, 150:225] -= ink
    sheet += np.random.default_rng(3).normal(0, noise, size)
    return read_image(saved(Image.fromarray((255 * sheet.clip(0, 1)).astype(np.uint8)), "JPEG"))


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05])
def test_an_empty_sheet_is_blank_and_faint_ink_is_not(noise):
    assert prepare(photographed_sheet(0, noise), MODEL, DIGITS).blank
    assert not prepare(photographed_sheet(4 * noise + 0.1, noise), MODEL, DIGITS).blank


def test_every_step_is_kept_for_showing():
    steps = prepare(read_image(saved(ink_picture().convert("RGB").resize((700, 500)))), MODEL, DIGITS).steps
    assert steps[0].name == "as read" and steps[-1].name == "what the model sees"
    assert steps[-1].pixels.shape == (36, 36)
    assert all(step.pixels.dtype == np.uint8 for step in steps)
    (found,) = [step for step in steps if step.name == "ink found"]
    left, top, right, bottom = found.box
    inside = found.pixels[int(top) : int(bottom), int(left) : int(right)]
    assert inside.sum(dtype=int) > 0.95 * found.pixels.sum(dtype=int)
