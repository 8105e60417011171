"""One image shown to models of other sizes and tasks, and images that run out."""

import io
import math
import re
from dataclasses import replace

import pytest
import torch
from PIL import Image
from test_app_looking import CHOICE, dot, png, shown
from torch import Tensor
from visitors import save_model

from ocra.app import view as view_module
from ocra.app.looking import Force, Look, companion, load_models, look
from ocra.app.studio import Choice, Session, Studio
from ocra.app.subjects import Request, Subject, TestImages, from_drawing
from ocra.errors import OcraError
from ocra.model.ocra import OCRA

BOTH = Choice("clutter", 3, True, "three", 3)


def drawn_dot(x: int, y: int) -> Subject:
    """A small spot on a drawing pad of 420 pixels, and something else to frame."""
    image = Image.new("L", (420, 420))
    image.paste(255, (x - 8, y - 8, x + 9, y + 9))
    image.paste(255, (300, 60, 320, 160))
    return from_drawing(png(image))


def middle_of_light(glimpse: Tensor) -> list[float]:
    """Where the brightest part of a glimpse [channels, rows, columns] is, 0 being its middle, in shares of it."""
    rows, columns = torch.where(glimpse[0] > 0.5 * glimpse.max())
    half = (glimpse.shape[1] - 1) / 2
    return [(float(places.float().mean()) - half) / half for places in (columns, rows)]


def window_in_image(seen: Look) -> list[float]:
    """Centre and width of the forced window in pixels of the image."""
    windows = seen.trace.read_windows
    width = float(windows.width(seen.config.glimpse_size)[1, 1])
    return [
        *seen.prepared.placement.to_source(*windows.center[1, 1].tolist()),
        width * seen.prepared.placement.scale[0],
    ]


@pytest.mark.parametrize(
    ("subject", "x", "y", "width"), [(dot(30, 70, 100), 30, 70, 25), (drawn_dot(130, 280), 130, 280, 100)]
)
def test_forced_window_reads_the_same_part_of_the_image_in_models_of_other_sizes(
    models, subject, x, y, width
):
    for name in ("clutter", "three"):
        seen = look(name, models[name], subject, 3, [Force(1, x, y, width)])
        assert window_in_image(seen) == pytest.approx([x, y, width], abs=0.01)
        assert middle_of_light(seen.trace.glimpses[1, 1]) == pytest.approx([0, 0], abs=0.15)


def test_window_far_outside_is_kept_in_reach_of_the_image(models):
    seen = look("three", models["three"], dot(8, 25), 3, [Force(0, 1e9, -1e9, 1e9)])
    assert seen.trace.read_windows.center[1, 0].tolist() == [72, -36]
    assert seen.trace.read_windows.width(18)[1, 0].item() == pytest.approx(70)


def test_test_image_of_another_task_is_resized_and_nothing_else(models):
    subject, _ = TestImages().take(Request("cluttered", 2), models["clutter"], patience=60)
    seen = look("three", models["three"], subject, 3)
    averaged = torch.nn.functional.interpolate(subject.exact[None], size=(36, 36), mode="area")[0]
    assert (seen.prepared.image - averaged).abs().mean() < 0.02
    assert seen.prepared.placement.scale == pytest.approx((100 / 36, 100 / 36))


def test_column_of_a_resized_image_says_so_and_the_other_does_not(models):
    subject, _ = TestImages().take(Request("cluttered", 2), models["clutter"], patience=60)
    first, second = Studio(models).show(Session(subject), BOTH).view.split("</article>")[:2]
    assert "resized" not in first
    assert "resized for this model, from 100 × 100 px to 36 × 36 px" in second


def test_each_column_shows_how_an_upload_was_prepared(models):
    file = io.BytesIO()
    Image.new("RGB", (40, 30), "white").save(file, "PNG")
    studio = Studio(models)
    studio.uploads.fill(token := studio.uploads.reserve("a", 5), file.getvalue())
    first, second = studio.upload(Session(), token, "paper.png", BOTH).view.split("</article>")[:2]
    assert "100 × 100 px" in first and "36 × 36 px" in second


def test_model_is_compared_with_the_next_of_its_task_and_size(models):
    assert [companion(models, name) for name in ("three", "five", "clutter")] == ["five", "three", None]


@pytest.mark.needs("gradio")
def test_another_model_brings_its_companion_unless_two_are_being_compared(models):
    from ocra.app import page

    actions = page.Page(Studio(models))
    assert actions.other_model(Session(), "five", 3, False, "clutter", 3)[10] == "three"
    assert actions.other_model(Session(), "five", 3, True, "clutter", 3)[10] == page.gr.skip()


@pytest.mark.needs("gradio")
def test_list_that_is_merely_opened_changes_nothing(models):
    from ocra.app import page

    actions, skip = page.Page(Studio(models)), page.gr.skip()
    now = ("three", 2, False, "five", 5)
    session = actions.studio.show(Session(dot(5, 5), asked=Request("multimnist", 4)), Choice(*now)).session
    for outputs in (
        actions.other_model(session, *now),
        actions.other_second(session, *now),
        actions.changed(session, *now),
        actions.asking("this")(session, "multimnist", 4, 0, *now),
    ):
        assert outputs[0] == session
        assert all(value == skip for value in (outputs[1], outputs[2], *outputs[4:]))


def test_answer_its_doubts_and_its_change_are_text_in_a_status(models, monkeypatch):
    monkeypatch.setattr(view_module, "UNSURE", 1.1)
    studio = Studio(models)
    view = studio.force(shown(studio), [{"step": 1, "x": 18, "y": 18, "width": 17}], CHOICE).view
    said = view.split('<div class="said" role="status">')[1].split("</header>")[0]
    assert 'class="answer"' in said and 'class="was' in said
    assert "(0.5: level with the next class)" in said
    assert re.search(
        r'<p class="doubt">[^<]*(is|are) (hardly ahead of the next|behind another) class</p>', said
    )


@pytest.fixture
def of_folder(tmp_path) -> OCRA:
    """A model trained on a folder of which three images are for testing."""
    lines = ["file,labels,split"]
    for number in range(4):
        Image.new("L", (36, 36), 60 * number).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,cat,{'test' if number else 'train'}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    weights = save_model(tmp_path / "own", 4, "folder", ["cat", "dog"], tmp_path, classes=2)
    return load_models([weights])["own"]


def test_stored_images_have_a_last_one_and_generated_ones_go_on(of_folder):
    images = TestImages()
    assert images.take(Request("folder", 2), of_folder, patience=60)[0].title == "Test image 2"
    with pytest.raises(OcraError, match="from 0 to 2"):
        images.take(Request("folder", 3), of_folder, patience=60)
    assert images.take(Request("multimnist", 20_000), of_folder, patience=60)[0].title == "Test image 20,000"


def test_another_and_next_stay_within_the_stored_images(of_folder):
    images = TestImages()
    assert images.take(Request("folder", 2, "next"), of_folder, patience=60)[1] == 0
    assert {images.take(Request("folder", 0, "any"), of_folder, patience=60)[1] for _ in range(20)} <= {
        0,
        1,
        2,
    }


@pytest.mark.parametrize("count", [math.nan, math.inf, "many"])
def test_number_of_glimpses_that_is_none_gives_a_sentence(models, count):
    studio = Studio(models)
    for choice in (replace(CHOICE, glimpses=count), replace(CHOICE, compare=True, other_glimpses=count)):
        message = studio.show(Session(dot(5, 5)), choice).notice
        assert 'role="alert"' in message and "glimpses" in message


def test_change_that_was_overtaken_by_a_later_one_is_passed_over(models):
    studio = Studio(models)
    result = studio.force(Session(dot(5, 5)), [{"step": 1, "x": 18, "y": 18, "width": 17}], CHOICE, 2)
    assert 'data-turn="2"' in result.view
    after = studio.force(result.session, [], CHOICE, 1)
    assert after.session == result.session and after.view is None
