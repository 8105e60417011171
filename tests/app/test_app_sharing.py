"""The address of what is shown, files and Python of it, and what can be done to a model while it looks."""

import contextlib
import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from test_app_looking import CHOICE, dot, png, shown, wait_for
from visitors import save_model

import ocra
from ocra.app.looking import Choice, Force, Manner, load_models, look
from ocra.app.sharing import FILES, from_query, to_file, to_python, to_query
from ocra.app.studio import Session, Studio
from ocra.app.subjects import Request, SceneRequest, TestImages, from_drawing
from ocra.baselines.cnn import CNNConfig
from ocra.errors import OcraError

SCENE = SceneRequest(3, overlap=0.4, clutter=2, contrast=0.5, noise="blur", severity=1.5, seed=2, of="three")
SILENCED = Choice("three", 2, True, "five", 4, 0.25, 2, ("encoder-memory", "3"), True)


@pytest.fixture(scope="module")
def images() -> TestImages:
    return TestImages()


@pytest.mark.parametrize("asked", [Request("multimnist", 7, seed=2, of="three"), SCENE])
@pytest.mark.parametrize("choice", [CHOICE, SILENCED])
def test_address_leads_to_what_was_shown(models, images, asked, choice):
    subject, _ = images.take(asked, models["three"], patience=60)
    forced = (Force(1, 8.5, 20.25, 17.0),)
    found = from_query("?" + to_query(choice, subject, forced), models)
    assert (found.asked, found.forced, found.problems) == (asked, forced, ())
    assert found.choice.columns() == choice.columns()


def test_image_taken_for_another_model_is_found_again(models, images):
    """Scenes follow a model's task: the address says whose they are if another model looks at them."""
    subject, _ = images.take(SCENE, models["three"], patience=60)
    found = from_query(to_query(Choice("clutter", 3, False, "five", 5), subject, ()), models)
    assert found.asked.of == "three" and found.choice.model == "clutter"
    again, _ = images.take(found.asked, models[found.asked.of], patience=60)
    assert torch.equal(again.exact, subject.exact)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("model=nobody", "no model of this name"),
        ("glimpses=many", "whole number from 1 to 20"),
        ("glimpses=2.5", "whole number"),
        ("image=-1", "from 0 to 10,000,000"),
        ("until=nan", "number from 0 to 3"),
        ("task=chess", "no task of this name"),
        ("lesion=soul", "no such part"),
        ("window=1,2", "glimpse, x, y and width"),
        ("window=1,2,3,inf", "glimpse, x, y and width"),
        ("scene=1&noise=loud", "no kind of noise"),
        ("colour=red", "means nothing"),
        ("image=own", "not part of the address"),
    ],
)
def test_values_of_an_address_that_are_wrong_are_passed_over_with_a_sentence(models, query, words):
    found = from_query(query, models)
    assert len(found.problems) == 1 and words in found.problems[0]
    assert found.choice == from_query("", models).choice
    assert found.asked.number in (0, 1) and found.forced == ()


def run_python(code: str, folder: Path) -> ocra.prediction.Prediction:
    """What a script of the page answers."""
    space: dict = {}
    with contextlib.chdir(folder) if hasattr(contextlib, "chdir") else contextlib.nullcontext():
        exec(code, space)
    return space["answer"]


@pytest.mark.parametrize(
    ("asked", "name", "manner", "forced"),
    [
        (Request("multimnist", 7), "three", Manner(3), ()),
        (Request("multimnist", 7, seed=1), "five", Manner(4, 0.05, 1, ("decoder-memory", "3")), ()),
        (SCENE, "three", Manner(2), (Force(1, 8, 20, 17),)),
        (Request("cluttered", 1), "three", Manner(3), ()),  # of another size: resized
    ],
)
def test_python_of_the_page_gives_its_answer(
    models, images, weights, capsys, tmp_path, asked, name, manner, forced
):
    subject, _ = images.take(asked, models["clutter" if asked != SCENE else "three"], patience=60)
    seen = look(name, models[name], subject, manner, forced)
    source = weights[list(models).index(name)]
    code = to_python(seen, subject, source)
    assert 3 <= len(code.splitlines()) <= 8
    answer = run_python(code, tmp_path)
    assert answer.labels == tuple(found.label for found in seen.answers[-1])
    assert [found.score for found in answer.objects] == pytest.approx(
        [found.score for found in seen.answers[-1]], rel=1e-5
    )
    assert len(answer.glimpses) == seen.glimpses
    assert "Prediction(" in capsys.readouterr().out


def test_python_of_a_drawing_takes_the_file_it_was_saved_as(models, weights, tmp_path, monkeypatch):
    image = Image.new("L", (420, 420))
    image.paste(255, (100, 90, 140, 300))
    image.save(tmp_path / "drawing.png")
    monkeypatch.chdir(tmp_path)
    subject = from_drawing(png(image))
    seen = look("three", models["three"], subject, 3)
    assert run_python(to_python(seen, subject, weights[0]), tmp_path).objects == tuple(seen.answers[-1])


def test_looking_ends_once_the_answer_is_sure(models, images):
    subject, _ = images.take(Request("multimnist", 7), models["five"], patience=60)
    whole = look("five", models["five"], subject, 5)
    margin = look("five", models["five"], subject, 2).margin
    seen = look("five", models["five"], subject, Manner(5, until=margin))
    assert seen.glimpses <= 2 and seen.margin >= margin
    assert seen.answers == whole.answers[: seen.glimpses]
    assert look("five", models["five"], subject, Manner(5, until=3.0)).glimpses == 5


def test_what_a_model_cannot_do_is_left_out_and_said(tmp_path, models):
    options = {"classes": 14, "height": 64, "width": 64, "glimpses": 12, "readout_digits": 5}
    number = load_models([save_model(tmp_path / "number", 5, "svhn", **options)])
    manner = Manner(12, until=0.1, silenced=("feedback", "20", "encoder-memory"))
    seen = look("number", number["number"], dot(5, 5), manner)
    assert seen.glimpses == 12 and seen.manner.silenced == ("encoder-memory",)
    assert seen.unable == ("always looks to the end", "lacks what is silenced")
    studio = Studio(number)
    result = studio.test(Session(), SceneRequest(1), Choice("number", 12, False, "number", 12))
    assert "in grey images" in result.notice and 'role="alert"' in result.notice


def test_silenced_capsule_is_never_seen(models, images):
    subject, _ = images.take(Request("multimnist", 7), models["three"], patience=60)
    seen = look("three", models["three"], subject, Manner(3, silenced=("3",)))
    assert (seen.trace.capsule_lengths[:, :, 3] == 0).all()


def test_scenes_keep_their_digits_while_they_are_laid_out_otherwise(models, images):
    taken = [
        images.take(SceneRequest(5, overlap=overlap, contrast=contrast), models["clutter"], patience=60)[0]
        for overlap, contrast in ((0.0, 1.0), (0.6, 1.0), (0.6, 0.5))
    ]
    assert len({subject.truth for subject in taken}) == 1
    assert "overlap 0.00" in taken[0].title and "overlap 0.6" in taken[1].title
    assert taken[2].exact.sum() < 0.8 * taken[1].exact.sum()


def test_trials_are_counted_once_for_each_condition(models):
    studio = Studio(models)
    session = Session()
    for number, overlap in ((1, 0.5), (2, 0.5), (1, 0.5), (1, 0.8)):
        result = studio.test(session, SceneRequest(number, overlap=overlap), CHOICE)
        session = (wait_for(studio, result.session) if result.session.waiting else result).session
    assert [condition for condition, _, _ in session.trials] == ["three, overlap 0.5"] * 2 + [
        "three, overlap 0.8"
    ]
    lesion = studio.again(session, replace(CHOICE, silenced=("3",), glimpses=2))
    assert "three, 2 glimpses, without capsule 3, overlap 0.8</th>" in lesion.tally
    forced = studio.force(lesion.session, [{"step": 0, "x": 9, "y": 9, "width": 9}], CHOICE)
    assert forced.session.trials == lesion.session.trials and forced.tally is None


@pytest.mark.parametrize(
    "wrong", [{"overlap": 7}, {"clutter": 1e9}, {"contrast": "x"}, {"noise": "?", "severity": 1}]
)
def test_scene_that_cannot_be_made_is_refused(models, images, wrong):
    with pytest.raises(OcraError, match=r"must be a number from|no noise of the kind"):
        images.take(SceneRequest(1, **wrong), models["three"], patience=60)


def test_files_of_a_pass(models, images):
    subject, _ = images.take(Request("multimnist", 7), models["three"], patience=60)
    seen = look("three", models["three"], subject, Manner(2), [Force(1, 8, 20, 17)])
    begins = {"png": b"\x89PNG", "pdf": b"%PDF", "gif": b"GIF8"}
    for what in FILES:
        name, content = to_file(seen, subject, what)
        assert name == f"ocra-three-test-image-7-{what}"
        if what.endswith("csv"):
            rows = list(csv.DictReader(io.StringIO(content.decode())))
            assert [float(row["x"]) for row in rows][1] == pytest.approx(8) and len(rows) == 2
        else:
            assert content.startswith(begins[what[-3:]])


def test_only_what_is_shown_can_be_saved_and_not_too_much_at_once(models, monkeypatch):
    studio = Studio(models)
    session = shown(studio)
    assert studio.save(session.token, 0, "scanpath.csv")[1].startswith(b"image,step,x,y")
    for token, column, what in (
        ("other", 0, "figure.png"),
        (session.token, 1, "figure.png"),
        (session.token, 0, "x"),
    ):
        with pytest.raises(OcraError):
            studio.save(token, column, what)
    studio._to_draw = 4
    with pytest.raises(OcraError, match="try again"):
        studio.save(session.token, 0, "scanpath.csv")


def test_network_without_windows_or_canvas_is_shown_as_far_as_it_goes(tmp_path, monkeypatch):
    network = CNNConfig(height=36, width=36).network(CNNConfig(height=36, width=36))
    network.save_pretrained(tmp_path / "cnn")
    models = load_models([str(tmp_path / "cnn")])
    choice = Choice("cnn", 5, False, "cnn", 1, 0.5, 3, ("encoder-memory",))
    studio = Studio(models, sources=[str(tmp_path / "cnn")])
    first = studio.test(Session(), Request("multimnist", 7), choice)
    result = wait_for(studio, first.session) if first.session.waiting else first
    assert "It draws nothing" in result.view and "the whole image" not in result.view
    assert 'data-movable="0"' in result.view and "lacks what is silenced" in result.view
    assert studio.save(result.session.token, 0, "figure.png")[1].startswith(b"\x89PNG")


# In Chromium


def test_address_follows_what_is_done_and_a_reload_keeps_it(visit, server):
    visitor = visit(query="?image=3&until=0.2&glimpses=2&nonsense=1")
    page = visitor.page
    assert "Test image 3" in visitor.text(".transport .subject")
    assert "means nothing" in visitor.text(".ocra-notice.error")
    page.get_by_label("Compare side by side").click()
    visitor.wait_until_shown(".looks.two")
    page.locator(".film button").first.click()
    box = page.locator(".image").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.25, box["y"] + box["height"] * 0.75)
    page.locator(".window.forced").first.wait_for()
    address = page.url
    for part in ("model=three", "with=five", "image=3", "until=0.2", "window=1,"):
        assert part in address
    assert "nonsense" not in address
    page.reload()
    visitor.wait_until_shown(".looks.two")
    assert page.url == address
    assert page.locator(".film .forced").count() == 2
    assert page.locator("#ocra-until input[type=number]").input_value() == "0.2"
    page.get_by_role("tab", name="Test image").click()
    assert page.locator("#ocra-number input").input_value() == "3"


def test_drawing_is_not_in_the_address_and_that_is_said(visit):
    visitor = visit()
    visitor.draw()
    visitor.wait_for_subject("Your drawing")
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visitor.page.get_by_role("button", name="Copy link").click()
    assert "not your own image" in visitor.text(".silence")
    link = visitor.page.evaluate("navigator.clipboard.readText()")
    assert "image=own" in link
    visitor.page.goto(link)
    visitor.wait_until_shown()
    assert "not part of the address" in visitor.text(".ocra-notice")


def test_files_and_python_are_a_click_away(visit, tmp_path):
    visitor = visit()
    page = visitor.page
    for file in FILES:
        with page.expect_download() as download:
            page.locator(f'[data-file="{file}"]').click()
        assert download.value.suggested_filename == f"ocra-three-test-image-0-{file}"
        assert Path(download.value.path()).stat().st_size > 100
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy Python").click()
    page.get_by_role("button", name="Copied").wait_for()
    answer = run_python(page.evaluate("navigator.clipboard.readText()"), tmp_path)
    assert all(label in visitor.text(".said .now .answer") for label in answer.labels)


def test_scene_is_laid_out_and_experiments_are_run_by_hand(visit):
    visitor = visit()
    page = visitor.page
    page.get_by_role("tab", name="Scene").click()
    page.get_by_role("button", name="Next").last.click()
    visitor.wait_for_subject("Scene 1, overlap")
    before = page.locator(".image").get_attribute("href")
    contrast = page.locator("#ocra-contrast input[type=number]")
    contrast.fill("0.3")
    contrast.press("Tab")
    page.wait_for_function("old => document.querySelector('.image').getAttribute('href') !== old", arg=before)
    assert page.locator(".ocra-tally tr").count() == 2
    assert "contrast 0.3" in visitor.text(".ocra-tally tr")
    assert "scene=1" in page.url and "contrast=0.3" in page.url
    stage = page.locator(".stage").bounding_box()
    page.get_by_role("button", name="Experiment").click()
    visitor.choose("ocra-silenced", "encoder memory")
    page.locator(".model", has_text="without encoder memory").wait_for()
    until = page.locator("#ocra-until input[type=number]")
    until.fill("0.05")
    until.press("Tab")
    page.locator(".model", has_text="sure after").wait_for()
    assert "lesion=encoder-memory" in page.url and "until=0.05" in page.url
    after = page.locator(".stage").bounding_box()
    assert (after["width"], after["height"]) == (stage["width"], stage["height"])
