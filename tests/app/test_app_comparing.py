"""One picture shown to models of other sizes and tasks, and pictures that run out."""

import math
import re
from dataclasses import replace

import pytest
import torch
from PIL import Image
from test_app_looking import CHOICE, dot, png
from torch import Tensor
from visitors import save_model

from ocra.app import verdict
from ocra.app.looking import Force, Look, look
from ocra.app.networks import Network, Networks
from ocra.app.studio import Choice, Session, Studio
from ocra.app.subjects import Subject, from_drawing, from_task, how_many
from ocra.errors import OcraError

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


def window_in_picture(seen: Look) -> list[float]:
    """Centre and width of the forced window in pixels of the picture."""
    windows = seen.trace.read_windows
    width = float(windows.width(seen.network.config.glimpse_size)[1, 1])
    return [*seen.placement.to_picture(*windows.center[1, 1].tolist()), width * seen.placement.scale[0]]


@pytest.mark.parametrize(
    ("subject", "x", "y", "width"), [(dot(30, 70, 100), 30, 70, 25), (drawn_dot(130, 280), 130, 280, 100)]
)
def test_forced_window_reads_the_same_part_of_the_picture_in_models_of_other_sizes(
    networks, subject, x, y, width
):
    for name in ("clutter", "three"):
        seen = look(networks[name], subject, 3, [Force(1, x, y, width)])
        assert window_in_picture(seen) == pytest.approx([x, y, width], abs=0.01)
        assert middle_of_light(seen.trace.glimpses[1, 1]) == pytest.approx([0, 0], abs=0.15)


def test_window_far_outside_is_kept_in_reach_of_the_image(networks):
    seen = look(networks["three"], dot(8, 25), 3, [Force(0, 1e9, -1e9, 1e9)])
    assert seen.trace.read_windows.center[1, 0].tolist() == [72, -36]
    assert seen.trace.read_windows.width(18)[1, 0].item() == pytest.approx(70)


def test_test_picture_of_another_task_is_resized_and_nothing_else(networks):
    subject = from_task("cluttered", 2, networks["clutter"])
    seen = look(networks["three"], subject, 3)
    averaged = torch.nn.functional.interpolate(subject.exact[None], size=(36, 36), mode="area")[0]
    assert (seen.image - averaged).abs().mean() < 0.02
    assert seen.placement.scale == pytest.approx((100 / 36, 100 / 36))


def test_column_of_a_resized_picture_says_so_and_the_other_does_not(networks):
    _, view, _ = Studio(networks).test(Session(), "cluttered", 2, BOTH)
    first, second = view.split("</article>")[:2]
    assert "resized" not in first
    assert "resized for this model, from 100 × 100 px to 36 × 36 px" in second


def test_each_column_shows_how_an_upload_was_prepared(networks, tmp_path):
    Image.new("RGB", (40, 30), "white").save(tmp_path / "paper.png")
    _, view, _ = Studio(networks).upload(Session(), str(tmp_path / "paper.png"), BOTH)
    first, second = view.split("</article>")[:2]
    assert "100 × 100 px" in first and "36 × 36 px" in second


def test_model_is_compared_with_the_next_of_its_task_and_size(networks, tmp_path):
    assert [networks.companion(name) for name in ("three", "five", "clutter")] == ["five", "three", None]
    absent = Networks([save_model(tmp_path / "here", 1), str(tmp_path / "nowhere"), "nobody/nothing"])
    assert absent.companion("here") is None


def test_another_model_brings_its_companion_unless_two_are_being_compared(networks):
    page = pytest.importorskip(
        "ocra.app.page", reason="the page needs Gradio: pip install 'ocra-vision[app]'"
    )
    actions = page.Actions(Studio(networks))
    assert actions.other_model(Session(), "five", 3, False, "clutter", 3)[-1] == "three"
    assert actions.other_model(Session(), "five", 3, True, "clutter", 3)[-1] == page.gr.skip()


def test_answer_its_doubts_and_its_change_are_text_in_a_status(networks, monkeypatch):
    monkeypatch.setattr(verdict, "UNSURE", 1.1)
    studio = Studio(networks)
    session, _, _ = studio.test(Session(), "multimnist", 0, CHOICE)
    session, view, _ = studio.force(session, [{"step": 1, "x": 18, "y": 18, "width": 17}], CHOICE)
    said = view.split('<div class="said" role="status">')[1].split("</div>")[0]
    assert 'class="answer"' in said and 'class="was' in said
    assert "(0.5: level with the next class)" in said
    assert re.search(r'<p class="doubt">\d and \d are hardly ahead of the next class</p>', said)


@pytest.fixture
def of_folder(tmp_path) -> Network:
    """A model trained on a folder of which three pictures are for testing."""
    lines = ["file,labels,split"]
    for number in range(4):
        Image.new("L", (36, 36), 60 * number).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,cat,{'test' if number else 'train'}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    weights = save_model(tmp_path / "own", 4, "folder", ["cat", "dog"], tmp_path, classes=2)
    return Networks([weights])["own"]


def test_stored_pictures_have_a_last_one_and_generated_ones_go_on(of_folder):
    assert how_many("folder", of_folder) == 3
    assert from_task("folder", 2, of_folder).title == "Test picture 2"
    with pytest.raises(OcraError, match="from 0 to 2"):
        from_task("folder", 3, of_folder)
    assert from_task("multimnist", 20_000, of_folder).title == "Test picture 20,000"


def test_another_and_next_stay_within_the_stored_pictures(of_folder):
    page = pytest.importorskip(
        "ocra.app.page", reason="the page needs Gradio: pip install 'ocra-vision[app]'"
    )
    networks = {"own": of_folder}
    actions = page.Actions(Studio(networks))
    now = ("own", 3, False, "own", 3)
    *_, (session, _, _, number) = actions.following(Session(), "folder", 2, *now)
    assert number == 0 and session.subject.title == "Test picture 0"
    numbers = {[*actions.another(Session(), "folder", 0, *now)][-1][3] for _ in range(20)}
    assert numbers <= {0, 1, 2}


@pytest.mark.parametrize("count", [math.nan, math.inf, "many"])
def test_number_of_glimpses_that_is_none_gives_a_sentence(networks, count):
    studio = Studio(networks)
    session, _, _ = studio.test(Session(), "multimnist", 0, CHOICE)
    for choice in (replace(CHOICE, glimpses=count), replace(CHOICE, compare=True, other_glimpses=count)):
        _, _, message = studio.show(session, choice)
        assert 'role="alert"' in message and "glimpses" in message


def test_change_that_was_overtaken_by_a_later_one_is_passed_over(networks):
    studio = Studio(networks)
    session, _, _ = studio.test(Session(), "multimnist", 0, CHOICE)
    window = {"step": 1, "x": 18, "y": 18, "width": 17}
    session, view, _ = studio.force(session, [window], CHOICE, 2)
    assert 'data-turn="2"' in view
    after, same, _ = studio.force(session, [], CHOICE, 1)
    assert after == session and same == view
