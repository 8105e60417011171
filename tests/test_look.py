"""Figures: what they show is what happened, and nothing lies on top of anything else."""

import itertools

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image
from tiny import ink_picture, tiny_model, tiny_weights

import ocra
from ocra.cli.main import run
from ocra.errors import OcraError, UsageError
from ocra.images.fitting import prepare
from ocra.images.reading import read_image
from ocra.model.trace import Windows
from ocra.model.weights import ModelInfo
from ocra.viz import look, save_look
from ocra.viz.animation import draw_frames
from ocra.viz.figure import draw_look, draw_preparation
from ocra.viz.grid import draw_results, error_lines
from ocra.viz.panels import draw_path, draw_window, show_image
from ocra.viz.record import records
from ocra.viz.style import READ, RIGHT, Sheet, styled


def record_of(model, images=None, about=None, truths=None, glimpses=None, windows=None):
    images = torch.rand(1, *model.config.image_shape) if images is None else images
    model.info = ModelInfo.from_dict(about or {}, model.config)
    titles = ["an image"] * len(images)
    return records(model, images, truths=truths, titles=titles, glimpses=glimpses, windows=windows)


def test_the_window_that_is_drawn_is_where_the_glimpse_came_from():
    """Narrow filters two pixels apart read every other pixel of the square that is drawn."""
    model = tiny_model(height=50, width=60, glimpses=1)
    image = torch.rand(1, 1, 50, 60)
    windows = Windows(torch.tensor([[37.0, 22.0]]), torch.tensor([2.0]), torch.tensor([0.05]))
    (record,) = record_of(model, image, windows=windows)
    x, y, side = record.reads[0]
    corners = np.array([x - side / 2, y - side / 2, x + side / 2, y + side / 2])
    assert corners.tolist() == [20, 5, 54, 39]
    left, top, right, bottom = corners.astype(int)
    seen = record.image[top : bottom + 1 : 2, left : right + 1 : 2]
    assert np.allclose(seen, record.glimpses[0], atol=1e-4)
    rectangle = draw_window(Sheet(2, 2).panel(0, 0, 2, 2), record.reads[0])
    assert [rectangle.get_x(), rectangle.get_y(), rectangle.get_width()] == [20, 5, 34]


def test_the_line_of_a_window_falls_on_the_pixels_it_should():
    """Drawn over a black image, the coloured line runs along the outermost pixels that were read."""
    with styled():
        figure = Sheet(4, 4)
        axes = figure.panel(0, 0, 4, 4)
        show_image(axes, np.zeros((40, 40)))
        draw_window(axes, (20, 12, 16), width=1)
        figure.set_dpi(100)
        figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3] / 255
    near = np.abs(pixels - to_rgb(READ)).sum(2) < 0.2
    rows, columns = np.nonzero(near)
    in_image = [value / 10 - 0.5 for value in (columns.min(), columns.max() + 1, rows.min(), rows.max() + 1)]
    assert in_image == pytest.approx([12, 28, 4, 20], abs=0.25)


def test_the_path_joins_the_centres_in_order():
    axes = Sheet(3, 3).panel(0, 0, 3, 3)
    show_image(axes, np.zeros((36, 36)))
    squares = np.array([[18, 18, 30], [5, 8, 10], [30, 25, 12]], dtype=np.float32)
    draw_path(axes, squares)
    assert np.allclose(axes.lines[0].get_xydata(), squares[:, :2])
    assert [text.get_text() for text in axes.texts] == ["1", "2", "3"]


def boxes(figure):
    """Everything drawn in a figure: (name, left, bottom, right, top) in dots."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    found = [(text.get_text(), text.get_window_extent(renderer)) for text in figure.texts if text.get_text()]
    for number, axes in enumerate(figure.axes):
        found.append((f"axes {number}", axes.get_tightbbox(renderer)))
    found += [("legend", legend.get_window_extent(renderer)) for legend in figure.legends]
    return [(name, box.x0, box.y0, box.x1, box.y1) for name, box in found]


def assert_tidy(figure):
    """Nothing leaves the figure and nothing overlaps."""
    width, height = figure.bbox.width, figure.bbox.height
    everything = boxes(figure)
    for name, left, bottom, right, top in everything:
        assert left >= -1 and bottom >= -1 and right <= width + 1 and top <= height + 1, f"{name} is cut off"
    for a, b in itertools.combinations(everything, 2):
        across = min(a[3], b[3]) - max(a[1], b[1])
        down = min(a[4], b[4]) - max(a[2], b[2])
        assert across < 2 or down < 2, f"{a[0]} and {b[0]} overlap by {across:.0f} × {down:.0f} dots"


FIGURES = {
    "three": ({}, None, None, ("3", "8")),
    "one": ({"glimpses": 1}, None, None, None),
    "ten": ({"glimpses": 10}, None, None, ("0", "1")),
    "scattered": (
        {"glimpses": 5, "height": 100, "width": 100, "background_capsules": 1}, None, None, ("4", "4"),
    ),
    "house number": (
        {"glimpses": 12, "height": 64, "width": 64, "classes": 14, "readout_digits": 5}, None, None,
        ("2", "1"),
    ),
    "wide colour": (
        {"glimpses": 4, "height": 24, "width": 60, "channels": 3, "classes": 3}, None,
        {"task": "folder", "class_names": ["a very long class name", "hippopotamus", "b"]}, ("b",) * 6,
    ),
    "high, many classes": (
        {"glimpses": 7, "height": 60, "width": 25, "classes": 40}, None,
        {"task": "folder", "class_names": [f"class {k}" for k in range(40)]}, None,
    ),
    "no windows": ({"attention": False}, None, None, ("3", "8")),
}  # fmt: skip


@pytest.mark.parametrize("width", [None, 3.5, 7])
@pytest.mark.parametrize("kind", FIGURES)
def test_nothing_is_cut_off_or_overlaps(kind, width):
    options, images, about, truth = FIGURES[kind]
    (record,) = record_of(tiny_model(**options), images, about, [truth] if truth else None)
    figure = draw_look(record, width, bare=width == 3.5)
    assert_tidy(figure)
    assert width is None or figure.get_figwidth() == pytest.approx(width)


def test_letters_of_a_figure_for_a_column_are_readable_and_the_headline_can_be_left_out():
    (record,) = record_of(tiny_model(glimpses=12, height=64, width=64, classes=14, readout_digits=5))
    with_headline, bare = draw_look(record, 3.5), draw_look(record, 3.5, bare=True)
    texts = [text for text in bare.findobj(Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in texts) >= 6.5
    assert record.answer in {text.get_text() for text in with_headline.texts} - {
        text.get_text() for text in bare.texts
    }


def test_twelve_glimpses_stand_in_two_rows():
    (record,) = record_of(tiny_model(glimpses=12, height=64, width=64, classes=14, readout_digits=5))
    for width in (None, 3.5, 7):
        names = [text for text in draw_look(record, width).texts if text.get_text() == "glimpse"]
        assert len({text.get_position()[1] for text in names}) == 2


def test_fonts_are_embedded_in_a_pdf_as_true_type(tmp_path):
    save_look(record_of(tiny_model(glimpses=1))[0], tmp_path / "figure.pdf", 3.5, bare=True)
    content = (tmp_path / "figure.pdf").read_bytes()
    assert b"/FontFile2" in content and b"/Type3" not in content and b"/CIDFontType2" in content


def test_the_figure_of_a_users_image_is_tidy_too(tmp_path):
    ink_picture((900, 400)).save(tmp_path / "photo.png")
    model = tiny_model()
    prepared = prepare(read_image(tmp_path / "photo.png"), model.config, ocra.MultiMNIST.preprocessing)
    images = prepared.image[None]
    (record,) = records(model, images, titles=["photo"], prepared=[prepared])
    for width in (None, 3.5, 7):
        assert_tidy(draw_look(record, width))
    assert_tidy(draw_preparation(prepared))


def test_the_part_of_the_users_image_that_the_model_sees_is_marked(tmp_path):
    ink_picture((900, 400)).save(tmp_path / "photo.png")
    (record,) = look(tiny_model(), tmp_path / "photo.png", tmp_path / "look.svg")
    figure = draw_look(record)
    own = next(axes for axes in figure.axes if axes.get_xlim() == (-0.5, 899.5))
    (mark,) = [patch for patch in own.patches if isinstance(patch, Rectangle)]
    left, top = record.prepared.placement.to_source(-0.5, -0.5)
    assert (mark.get_x(), mark.get_y()) == pytest.approx((left, top))
    assert mark.get_width() == pytest.approx(36 * record.prepared.placement.scale[0])


@pytest.mark.parametrize("number", [1, 7, 25])
def test_a_grid_is_tidy_and_lists_its_errors(number):
    model = tiny_model()
    images = torch.rand(number, 1, 36, 36)
    made = record_of(model, images, truths=[("3", "8")] * number)
    assert_tidy(draw_results(made, "a title"))
    narrow = draw_results(made, "a title", width=3.5, bare=True)
    assert_tidy(narrow)
    assert narrow.get_figwidth() == 3.5 and len(narrow.axes) == 2 * number
    wrong = [record for record in made if not record.right]
    assert len(error_lines(made)) == len(wrong)
    if wrong:
        assert error_lines(made)[0].startswith("an image: 3 8 taken for ")


def test_the_mask_is_shown_where_the_model_was_trained_with_one():
    with_mask = record_of(tiny_model(background_capsules=1))[0]
    without = record_of(tiny_model())[0]
    assert with_mask.mask is not None and with_mask.mask.max() == pytest.approx(1) and without.mask is None
    texts = [[text.get_text() for text in draw_look(record).texts] for record in (with_mask, without)]
    assert "reconstruction mask" in texts[0] and "reconstruction mask" not in texts[1]


def test_an_animation_moves_the_window_and_ends_with_the_answer():
    frames, durations = draw_frames(record_of(tiny_model(glimpses=2))[0])
    assert len(frames) == len(durations) > 4
    assert len({frame.shape for frame in frames}) == 1
    assert durations[-1] == max(durations)
    assert (frames[0] != frames[1]).any()


def test_an_animation_has_the_colours_of_the_figures(tmp_path):
    save_look(record_of(tiny_model(glimpses=2))[0], tmp_path / "look.gif")
    with Image.open(tmp_path / "look.gif") as moving:
        for number in (0, moving.n_frames - 1):
            moving.seek(number)
            colours = {colour for _, colour in moving.convert("RGB").getcolors(1 << 24)}
            assert {tuple(round(255 * part) for part in to_rgb(name)) for name in (READ, RIGHT)} <= colours


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return str(tiny_weights(tmp_path_factory.mktemp("weights"), glimpses=2))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "gif", "webp"])
def test_the_ending_says_what_is_written(ending, weights, tmp_path, capsys):
    out = tmp_path / f"figure.{ending}"
    run("look", ["--task", "multimnist", "--index", "7", "--weights", weights, "--out", str(out)])
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "gif": b"GIF8", "webp": b"RIFF"}
    assert out.read_bytes().startswith(starts[ending])
    if ending in ("gif", "webp"):
        assert Image.open(out).n_frames > 2
    assert "It sees" in capsys.readouterr().out


def test_a_figure_is_the_same_file_each_time(weights, tmp_path, capsys):
    for name in ("a.svg", "b.svg"):
        run("look", ["--task", "multimnist", "--weights", weights, "--out", str(tmp_path / name)])
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_only_errors_are_shown_when_asked(weights, tmp_path, capsys):
    out = tmp_path / "grid.png"
    run(
        "look",
        ["--task", "multimnist", "--grid", "4", "--errors-only", "--weights", weights, "--out", str(out)],
    )
    said = capsys.readouterr().out
    assert "4 images" in said and "4 of them wrong" in said and said.count("taken for") == 4
    assert min(Image.open(out).size) > 300


def test_look_takes_images_of_a_task_and_draws_nothing_without_a_file(weights):
    task = ocra.make_task(ocra.MultiMNIST.Config(digits="glyphs"), "test")
    seen = ocra.look(weights, task, index=3, grid=2)
    assert [record.title for record in seen] == ["image 3", "image 4"]
    assert np.allclose(seen[1].image, task.batch([4]).images[0].permute(1, 2, 0))
    wrong = ocra.look(weights, task, errors_only=True, grid=3)
    assert [record.right for record in wrong] == [False] * 3
    with pytest.raises(UsageError, match="images of a task"):
        ocra.look(weights, torch.zeros(1, 36, 36), grid=2)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--out", "x.bmp"], UsageError),
        (["--grid", "5", "--out", "x.gif"], UsageError),
        (["--grid", "0", "--out", "x.png"], UsageError),
        (["--width", "1", "--out", "x.png"], UsageError),
        (["--bare", "--out", "x.gif"], UsageError),
        (["photo.png", "--task", "multimnist"], UsageError),
        (["--index", "-1"], UsageError),
        (["--index", "1e30"], UsageError),
        (["--task", "cluttered", "--digits", "glyphs"], UsageError),
        (["nowhere.png"], OcraError),
    ],
)
def test_impossible_wishes_are_refused(arguments, error, weights, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        run("look", [*arguments, "--weights", weights])


def test_an_image_is_not_replaced_by_its_figure(weights, tmp_path):
    image = tmp_path / "photo.png"
    Image.effect_noise((60, 60), 90).save(image)
    before = image.read_bytes()
    with pytest.raises(UsageError, match="is the image itself"):
        run("look", [str(image), "--weights", weights, "--out", str(image)])
    with pytest.raises(UsageError, match="is the image itself"):
        ocra.look(weights, image, f"{tmp_path}/../{tmp_path.name}/photo.png")
    assert image.read_bytes() == before


def test_a_blank_image_or_a_folder_is_not_guessed_at(weights, tmp_path):
    Image.new("L", (60, 60), 255).save(tmp_path / "blank.png")
    for act in (
        lambda: run(
            "look", [str(tmp_path / "blank.png"), "--weights", weights, "--out", str(tmp_path / "x.png")]
        ),
        lambda: ocra.look(weights, tmp_path / "blank.png", tmp_path / "x.png"),
    ):
        with pytest.raises(OcraError, match=r"blank\.png is one even tone"):
            act()
    with pytest.raises(OcraError, match=r"is a folder; give one of the images in it"):
        run("look", [str(tmp_path), "--weights", weights, "--out", str(tmp_path / "x.png")])
    assert not (tmp_path / "x.png").exists()
