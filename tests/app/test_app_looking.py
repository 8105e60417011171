"""What the page shows, without the page."""

import base64
import io
import math
import re
import time
from dataclasses import replace
from threading import Event

import pytest
import torch
from PIL import Image
from visitors import save_model

from ocra.app import looking, subjects
from ocra.app.looking import Force, load_models, look, so_far
from ocra.app.looking import _short_names as short_names
from ocra.app.studio import Choice, Result, Session, Studio
from ocra.app.subjects import Request, Subject, TestImages, from_drawing, from_upload
from ocra.app.view import _said, steps_of
from ocra.errors import OcraError
from ocra.images.reading import UserImage
from ocra.prediction import FoundObject

CHOICE = Choice("three", 3, False, "five", 5)


def dot(x: int, y: int, size: int = 36) -> Subject:
    """A black image with one white pixel."""
    image = torch.zeros(1, size, size)
    image[0, y, x] = 1
    return Subject("A dot", UserImage("dot", image[0].numpy(), size, size), "no", image)


def png(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def test_forced_window_reads_what_it_is_drawn_around(models):
    model = models["three"]
    seen = look("three", model, dot(8, 25), 3, [Force(1, 8, 25, 0.3 * 35)])
    assert seen.trace.glimpses[1, 1].sum() > 10 * seen.trace.glimpses[1, 1].mean()
    rows, columns = torch.where(seen.trace.glimpses[1, 1, 0] > 0.5 * seen.trace.glimpses[1, 1].max())
    middle = (model.config.glimpse_size - 1) / 2
    assert abs(columns.float().mean() - middle) < 1 and abs(rows.float().mean() - middle) < 1
    assert steps_of(seen)[1]["read"] == pytest.approx([8, 25, 0.3 * 35], abs=0.01)


def test_forcing_a_step_leaves_the_steps_before_it_and_the_free_pass_alone(models):
    model = models["three"]
    subject, _ = TestImages().take(Request("multimnist", 3), model, patience=60)
    free = look("three", model, subject, 3)
    seen = look("three", model, subject, 3, [Force(1, 7, 7, 14)])
    torch.testing.assert_close(seen.trace.capsule_lengths[0], free.trace.capsule_lengths[0])
    torch.testing.assert_close(seen.trace.capsule_lengths[1, 0], free.trace.capsule_lengths[0, 0])
    assert not torch.allclose(seen.trace.capsule_lengths[1, 1], free.trace.capsule_lengths[0, 1])
    assert [found.label for found in seen.free] == [found.label for found in free.answers[-1]]


def test_the_same_force_is_the_same_place_in_a_model_of_another_size(tmp_path):
    models = load_models([save_model(tmp_path / "large", 3, height=72, width=72)])
    seen = look("large", models["large"], dot(8, 25), 2, [Force(0, 8.5, 26.5, 17.5)])
    assert seen.trace.read_windows.center[1, 0].tolist() == pytest.approx([17.5, 53.5])
    assert seen.trace.read_windows.width(18)[1, 0].item() == pytest.approx(35, abs=1e-3)


def test_model_without_windows_is_shown_whole_and_cannot_be_forced(tmp_path):
    studio = Studio(load_models([save_model(tmp_path / "whole", 3, attention=False)]))
    choice = Choice("whole", 2, False, "whole", 2)
    session = Session(dot(5, 5))
    result = studio.force(session, [{"step": 0, "x": 18, "y": 18, "width": 35}], choice)
    assert 'class="force"' not in result.view and 'data-movable="0"' in result.view
    assert 'class="was' not in result.view and "error" not in result.notice


def test_many_classes_with_names_of_their_own_are_cut_to_the_longest_and_escaped(tmp_path):
    names = ["<b>cat</b>", *(f"class {k}" for k in range(29))]
    studio = Studio(load_models([save_model(tmp_path / "own", 4, "folder", names, classes=30)]))
    view = studio.show(Session(dot(5, 5)), Choice("own", 2, False, "own", 1)).view
    assert view.count('<th scope="row"') == 14 and "14 strongest of 30" in view
    assert "<b>cat" not in view


def shown(studio: Studio, number: int = 0) -> Session:
    """A session that looks at a test image, once its task is open."""
    return wait_for(studio, studio.test(Session(), Request("multimnist", number), CHOICE).session).session


def wait_for(studio: Studio, session: Session) -> Result:
    """The result once the task that is waited for is open."""
    result = Result(session)
    deadline = time.monotonic() + 60
    while result.session.waiting and time.monotonic() < deadline:
        result = studio.wait(result.session, CHOICE)
        time.sleep(0.01)
    return result


def test_new_image_lets_go_of_forced_windows_and_another_model_keeps_them(models):
    studio = Studio(models)
    session = shown(studio)
    result = studio.force(session, [{"step": 1, "x": 18, "y": 18, "width": 17}], CHOICE)
    assert len(result.session.forced) == 1 and "forced" in result.view
    session = studio.again(result.session, Choice("five", 5, False, "three", 3)).session
    assert len(session.forced) == 1
    assert studio.test(session, Request("multimnist", 1), CHOICE).session.forced == ()


def test_what_cannot_be_shown_leaves_everything_as_it_was_and_one_sentence(models):
    studio = Studio(models)
    session = shown(studio)
    for act in (
        lambda: studio.draw(session, "data:image/png;base64,????", CHOICE),
        lambda: studio.draw(session, 17, CHOICE),
        lambda: studio.upload(session, "no such token", "a.png", CHOICE),
        lambda: studio.upload(session, "", "a.png", CHOICE, problem="a.png is empty."),
        lambda: studio.test(session, Request("multimnist", -1), CHOICE),
        lambda: studio.test(session, Request("multimnist", None), CHOICE),
        lambda: studio.test(session, Request("unheard-of", 1), CHOICE),
        lambda: studio.force(session, "windows", CHOICE),
        lambda: studio.force(session, [{"step": 0, "x": "nan", "y": 0, "width": 1}], CHOICE),
        lambda: studio.force(session, [{"step": math.inf, "x": 0, "y": 0, "width": 1}], CHOICE),
        lambda: studio.again(session, replace(CHOICE, model="other")),
    ):
        result = act()
        assert result.view is None and result.session.subject == session.subject
        assert re.fullmatch(r'<p class="ocra-notice error" role="alert">[^<]+\.</p>', result.notice)


def test_error_that_nobody_expected_is_a_notice_too(models, monkeypatch, capsys):
    monkeypatch.setattr("ocra.app.studio.look", lambda *_: 1 / 0)
    result = Studio(models).show(Session(dot(5, 5)), CHOICE)
    assert 'role="alert"' in result.notice and "ZeroDivisionError" in result.notice
    assert "Traceback" in capsys.readouterr().err


def test_reading_a_task_makes_nobody_wait_and_is_told(models, monkeypatch):
    """A visitor who waits may do something else; the image is shown once its task is read."""
    readable, opened = Event(), subjects._open
    monkeypatch.setattr(subjects, "_open", lambda *asked: readable.wait(60) and opened(*asked))
    studio = Studio(models)
    started = time.monotonic()
    waiting = studio.test(Session(dot(5, 5)), Request("multimnist", 7), CHOICE)
    assert time.monotonic() - started < 5
    assert waiting.session.waiting and waiting.view is None
    assert re.search(r"reading the data, \d+ s so far", waiting.notice)
    drawn = studio.draw(waiting.session, png(Image.new("L", (420, 420), 90)), CHOICE)
    assert "Your drawing" in drawn.view and not drawn.session.waiting
    still = studio.wait(waiting.session, CHOICE)
    assert still.session.waiting and "so far" in still.notice
    readable.set()
    result = wait_for(studio, still.session)
    assert "Test image 7" in result.view and result.number == 7 and not result.session.waiting


def test_what_could_not_be_read_is_tried_again(models, monkeypatch):
    opened, tries = subjects._open, []

    def fail_once(*asked):
        tries.append(asked)
        if len(tries) == 1:
            raise OcraError("It is not there.")
        return opened(*asked)

    monkeypatch.setattr(subjects, "_open", fail_once)
    studio = Studio(models)
    first = wait_for(studio, studio.test(Session(), Request("multimnist", 0), CHOICE).session)
    assert first.session.subject is None
    second = wait_for(studio, studio.test(Session(), Request("multimnist", 0), CHOICE).session)
    assert second.session.subject is not None and len(tries) == 2


def test_answer_so_far_is_that_of_the_glimpses_made(models):
    """After t glimpses of a longer pass the model says what it would say if it had only made t."""
    model = models["five"]
    subject, _ = TestImages().take(Request("multimnist", 3), model, patience=60)
    seen = look("five", model, subject, 5)
    for t in range(5):
        alone = look("five", model, subject, t + 1).answers[-1]
        assert [found.label for found in seen.answers[t]] == [found.label for found in alone]
        assert [found.score for found in seen.answers[t]] == pytest.approx([found.score for found in alone])


def test_digits_of_a_number_are_named_once_their_glimpses_are_made(tmp_path):
    options = {"classes": 14, "height": 64, "width": 64, "glimpses": 12, "readout_digits": 5}
    (model,) = load_models([save_model(tmp_path / "number", 5, "svhn", **options)]).values()
    trace = model(torch.rand(1, 1, 64, 64), record=True)
    for made in range(1, 12):
        complete = max(0, made - model.config.readout_skip) // model.config.readout_span
        readout = so_far(trace, model.config, made).readout
        assert torch.equal(readout[:, :complete], trace.readout[:, :complete])
        assert (readout[:, complete:].argmax(2) == 10).all()
    assert so_far(trace, model.config, 12) is trace


def test_right_or_wrong_is_said_after_the_last_glimpse_only(models):
    view = Studio(models).show(shown(Studio(models)), CHOICE).view
    said = view.split('<div class="said" role="status">')[1].split("</header>")[0]
    before, last = said.split('<div data-t="2" class="now">')
    assert before.count("so far") == 2 and "right" not in before and "confidence" not in before
    assert ("✓ right" in last) != ("✗ wrong" in last)


def test_drawing_is_white_on_black_and_framed_by_its_ink(models):
    image = Image.new("L", (420, 420))
    image.paste(255, (10, 10, 40, 110))
    prepared = from_drawing(png(image)).seen_by(models["three"])
    assert not prepared.blank
    drawn = prepared.image
    rows, columns = torch.where(drawn[0] > 0.5)
    assert len(rows) > 30, "ink larger than on the pad"
    assert abs(rows.float().mean() - 17.5) < 1.5 and abs(columns.float().mean() - 17.5) < 1.5
    assert drawn[0, 0].max() == 0, "black around it"


def test_upload_is_named_as_the_visitor_named_it(models):
    file = io.BytesIO()
    Image.new("RGB", (40, 30), "white").save(file, "JPEG")
    studio = Studio(models)
    studio.uploads.fill(token := studio.uploads.reserve("a", 5), file.getvalue())
    result = studio.upload(Session(), token, "my <digit>.jpg", CHOICE)
    assert "my &lt;digit&gt;.jpg" in result.view and result.session.subject.title == "my <digit>.jpg"
    assert from_upload(file.getvalue(), "x").explain


def test_short_names_tell_models_apart():
    names = short_names(["runs/a/weights/best", "runs/b/weights/best", "shipped-3"])
    assert names == ["a/weights/best", "b/weights/best", "shipped-3"]


def test_usual_model_comes_first(monkeypatch):
    monkeypatch.setattr(looking, "load", lambda source: source)
    assert next(iter(load_models())) == "multimnist-3"


def test_view_says_what_a_model_can_say_in_plain_words(models, tmp_path):
    view = Studio(models).show(Session(dot(5, 5)), CHOICE).view
    assert "always names two objects · trained with three glimpses" in view
    options = {"classes": 14, "height": 64, "width": 64, "glimpses": 12, "readout_digits": 5}
    number = load_models([save_model(tmp_path / "number", 5, "svhn", **options)])
    view = Studio(number).show(Session(dot(5, 5)), Choice("number", 12, False, "number", 12)).view
    assert "reads a number of up to five digits" in view and "under 5 digits" in view


def test_class_that_is_behind_is_not_called_ahead(models):
    seen = look("three", models["three"], dot(5, 5), 1)
    for confidence, words in (
        (0.4, "3 is behind another class"),
        (0.52, "3 is hardly ahead of the next class"),
    ):
        answer = (FoundObject("3", 0.5, confidence), FoundObject("8", 0.9, 0.9))
        assert words in _said(seen, answer, dot(5, 5))


def test_empty_image_has_no_bars_and_no_names(models):
    blank = Subject("blank", UserImage("blank", torch.zeros(50, 50).numpy(), 50, 50))
    view = Studio(models).show(Session(blank), CHOICE).view
    assert "an empty image" in view and 'class="capsules"' not in view
    assert re.findall(r'<b class="(?:weak)?">([^<]*)</b></button>', view) == ["", "", ""]
