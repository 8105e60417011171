"""What the page shows, without the page."""

import base64
import io
import math
import re

import pytest
import torch
from PIL import Image
from visitors import save_model

from ocra.app.looking import Force, look
from ocra.app.networks import Networks
from ocra.app.panels import margin, window_box
from ocra.app.studio import Choice, Session, Studio
from ocra.app.subjects import Subject, from_drawing, from_task, from_upload
from ocra.app.verdict import in_words
from ocra.errors import OcraError
from ocra.images.reading import Picture

CHOICE = Choice("three", 3, False, "five", 5)


def dot(x: int, y: int, size: int = 36) -> Subject:
    """A black image with one white pixel."""
    image = torch.zeros(1, size, size)
    image[0, y, x] = 1
    return Subject("A dot", Picture("dot", image[0].numpy(), size, size), "no", image)


def png(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def test_forced_window_reads_what_it_is_drawn_around(networks):
    network = networks["three"]
    subject = dot(8, 25)
    seen = look(network, subject, 3, [Force(1, 8, 25, 0.3 * 35)])
    assert seen.trace.glimpses[1, 1].sum() > 10 * seen.trace.glimpses[1, 1].mean()
    rows, columns = torch.where(seen.trace.glimpses[1, 1, 0] > 0.5 * seen.trace.glimpses[1, 1].max())
    middle = (network.config.glimpse_size - 1) / 2
    assert abs(columns.float().mean() - middle) < 1 and abs(rows.float().mean() - middle) < 1
    left, top, width, height = window_box(
        seen, seen.trace.read_windows, 1, network.config.glimpse_size, margin(seen)
    )
    across = 36 + 2 * margin(seen)
    assert (left + width / 2) / 100 * across - margin(seen) - 0.5 == pytest.approx(8, abs=0.01)
    assert (top + height / 2) / 100 * across - margin(seen) - 0.5 == pytest.approx(25, abs=0.01)
    assert width / 100 * across == pytest.approx(0.3 * 35, abs=0.01)


def test_forcing_a_step_leaves_the_steps_before_it_and_the_free_pass_alone(networks):
    network, subject = networks["three"], from_task("multimnist", 3, networks["three"])
    free = look(network, subject, 3)
    seen = look(network, subject, 3, [Force(1, 7, 7, 14)])
    torch.testing.assert_close(seen.trace.capsule_lengths[0], free.trace.capsule_lengths[0])
    torch.testing.assert_close(seen.trace.capsule_lengths[1, 0], free.trace.capsule_lengths[0, 0])
    assert not torch.allclose(seen.trace.capsule_lengths[1, 1], free.trace.capsule_lengths[0, 1])
    assert seen.free.labels == free.answer.labels


def test_the_same_force_is_the_same_place_in_a_model_of_another_size(tmp_path):
    networks = Networks([save_model(tmp_path / "large", 3, height=72, width=72)])
    seen = look(networks["large"], dot(8, 25), 2, [Force(0, 8.5, 26.5, 17.5)])
    assert seen.trace.read_windows.center[1, 0].tolist() == pytest.approx([17.5, 53.5])
    assert seen.trace.read_windows.width(18)[1, 0].item() == pytest.approx(35, abs=1e-3)


def test_model_without_windows_is_shown_whole_and_cannot_be_forced(tmp_path):
    networks = Networks([save_model(tmp_path / "whole", 3, attention=False)])
    studio = Studio(networks)
    choice = Choice("whole", 2, False, "whole", 2)
    session, _, _ = studio.test(Session(), "multimnist", 0, choice)
    _, view, message = studio.force(session, [{"step": 0, "x": 18, "y": 18, "width": 35}], choice)
    assert "class='force'" not in view and 'class="force"' not in view
    assert 'data-movable="0"' in view and 'class="was' not in view and "error" not in message


def test_many_classes_with_names_of_their_own_are_cut_to_the_longest_and_escaped(tmp_path):
    names = ["<b>cat</b>", *(f"class {k}" for k in range(29))]
    studio = Studio(Networks([save_model(tmp_path / "own", 4, "folder", names, classes=30)]))
    _, view, _ = studio.show(Session(dot(5, 5)), Choice("own", 2, False, "own", 1))
    assert view.count('<th scope="row"') == 14 and "14 longest of 30" in view
    assert "<b>cat" not in view


def test_answers_are_put_into_words():
    assert in_words(["3", "8"]) == "3 and 8"
    assert in_words(["1", "2", "3"]) == "1, 2 and 3"
    assert in_words(["1", "2", "3"], joined=True) == "123"
    assert in_words([]) == "nothing"


def test_new_picture_lets_go_of_forced_windows_and_another_model_keeps_them(networks):
    studio = Studio(networks)
    session, _, _ = studio.test(Session(), "multimnist", 0, CHOICE)
    session, view, _ = studio.force(session, [{"step": 1, "x": 18, "y": 18, "width": 17}], CHOICE)
    assert len(session.forced) == 1 and "forced" in view
    session, _, _ = studio.again(session, Choice("five", 5, False, "three", 3))
    assert len(session.forced) == 1
    session, _, _ = studio.test(session, "multimnist", 1, CHOICE)
    assert session.forced == ()


def test_what_cannot_be_shown_leaves_the_old_picture_and_one_sentence(networks, tmp_path):
    studio = Studio(networks)
    session, view, _ = studio.test(Session(), "multimnist", 0, CHOICE)
    (tmp_path / "empty.png").touch()
    for action in (
        lambda: studio.draw(session, "data:image/png;base64,????", CHOICE),
        lambda: studio.draw(session, 17, CHOICE),
        lambda: studio.upload(session, str(tmp_path / "empty.png"), CHOICE),
        lambda: studio.test(session, "multimnist", -1, CHOICE),
        lambda: studio.test(session, "multimnist", None, CHOICE),
        lambda: studio.test(session, "unheard-of", 1, CHOICE),
        lambda: studio.force(session, "windows", CHOICE),
        lambda: studio.force(session, [{"step": 0, "x": "nan", "y": 0, "width": 1}], CHOICE),
        lambda: studio.force(session, [{"step": math.inf, "x": 0, "y": 0, "width": 1}], CHOICE),
    ):
        after, same, message = action()
        assert after == session and same == view
        assert re.fullmatch(r'<p class="ocra-notice error" role="alert">[^<]+\.</p>', message)
    assert not (tmp_path / "empty.png").exists()


def test_unknown_model_is_named(networks):
    with pytest.raises(OcraError, match="no model 'other'"):
        networks["other"]


def test_drawing_is_white_on_black_and_framed_by_its_ink(networks):
    image = Image.new("L", (420, 420))
    image.paste(255, (10, 10, 40, 110))
    prepared = from_drawing(png(image)).seen_by(networks["three"])
    assert not prepared.blank
    drawn = prepared.image
    rows, columns = torch.where(drawn[0] > 0.5)
    assert len(rows) > 30, "ink larger than on the pad"
    assert abs(rows.float().mean() - 17.5) < 1.5 and abs(columns.float().mean() - 17.5) < 1.5
    assert drawn[0, 0].max() == 0, "black around it"


def test_upload_is_named_as_the_visitor_named_it(tmp_path):
    Image.new("RGB", (40, 30), "white").save(tmp_path / "my digit.jpg")
    assert from_upload(str(tmp_path / "my digit.jpg")).title == "my digit.jpg"


def test_short_names_tell_models_apart():
    with_runs = Networks(["runs/a/weights/best", "runs/b/weights/best", "shipped-3"])
    assert with_runs.names == ["a/weights/best", "b/weights/best", "shipped-3"]
