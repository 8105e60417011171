"""The page in a real Chromium: what a visitor does, sees, and never sees."""

from pathlib import Path

import pytest
from PIL import Image


def test_page_shows_a_test_image_and_says_where_its_digits_come_from(visit):
    visitor = visit()
    assert "Test image 0" in visitor.text(".transport .subject")
    assert "drawn from fonts" in visitor.text("#ocra-message")
    visitor.page.locator(".ocra-pad.over").wait_for()  # the test image is in the pad, to draw over
    assert visitor.page.get_by_text("draw over it").is_visible()
    assert visitor.page.locator(".film button").count() == 3
    assert visitor.page.locator(".capsules tbody tr").count() == 10


def test_a_drawing_is_recognised_undone_and_cleared(visit):
    visitor = visit()
    visitor.draw()
    visitor.wait_for_subject("Your drawing")
    both = visitor.page.locator(".image").get_attribute("href")
    visitor.page.get_by_role("button", name="Undo").click()
    visitor.page.wait_for_function(
        "before => document.querySelector('.image').getAttribute('href') !== before", arg=both
    )
    visitor.page.get_by_role("button", name="Recognise").click()
    assert " and " in visitor.text(".said .now .answer")
    visitor.page.get_by_role("button", name="Clear").click()
    visitor.page.wait_for_selector(".ocra-view.nothing")


def test_steps_are_picked_with_slider_keys_film_and_play(visit):
    visitor = visit(reduced_motion="no-preference")
    page = visitor.page
    page.locator(".playing").wait_for()
    page.locator(".film button").nth(0).click()
    first = visitor.window()
    assert visitor.text(".count") == "Glimpse 1 of 3"
    assert page.locator(".playing").count() == 0
    page.locator("input.step").press("ArrowRight")
    assert visitor.text(".count") == "Glimpse 2 of 3"
    assert visitor.window() != first
    page.locator(".play").click()
    page.wait_for_function("document.querySelector('.count').textContent === 'Glimpse 3 of 3'")
    assert page.locator(".reads img.now").get_attribute("data-t") == "2"
    assert page.locator(".draws img.now").get_attribute("data-t") == "2"


def test_window_on_the_screen_is_the_window_of_the_trace(visit):
    visitor = visit()
    for t in range(3):
        visitor.page.locator(".film button").nth(t).click()
        step = visitor.page.locator(".look").evaluate("(look, t) => JSON.parse(look.dataset.steps)[t]", t)
        seen = visitor.window()
        assert seen["x"] == pytest.approx(step["read"][0], abs=0.1)
        assert seen["y"] == pytest.approx(step["read"][1], abs=0.1)
        assert seen["width"] == pytest.approx(step["read"][2], abs=0.1)


def test_gaze_is_forced_by_pointing_sized_nudged_and_released(visit):
    visitor = visit()
    page = visitor.page
    page.locator(".film button").nth(1).click()
    box = page.locator(".image").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.25, box["y"] + box["height"] * 0.75)
    page.locator(".window.forced").wait_for()
    assert visitor.text(".count") == "Glimpse 2 of 3"
    assert "left to itself" in (visitor.page.locator(".verdict .was").text_content() or "")
    seen = visitor.window()
    assert seen["x"] == pytest.approx(36 * 0.25 - 0.5, abs=0.3)
    assert seen["y"] == pytest.approx(36 * 0.75 - 0.5, abs=0.3)
    page.locator("input.extent").fill("0.5")
    page.locator(".place", has_text="18 px wide").wait_for()
    place = visitor.text(".place")
    page.locator(".stage").press("ArrowRight")
    page.locator(".place").filter(has_not_text=place).wait_for()
    page.get_by_role("button", name="Release all").click()
    page.wait_for_function("document.querySelector('.was') === null")
    assert page.locator(".forced").count() == 0


def test_last_two_windows_are_drawn_and_others_when_pointed_at(visit):
    visitor = visit()
    trails = visitor.page.locator(".stage .trail")
    assert visitor.text(".count") == "Glimpse 3 of 3" and visitor.page.locator(".stage circle").count() == 3

    def opacities() -> list[float]:
        return trails.evaluate_all("marks => marks.map((mark) => Number(getComputedStyle(mark).opacity))")

    assert [value > 0 for value in opacities()] == [False, True, False]
    visitor.page.locator(".film button").first.hover()
    assert [value > 0 for value in opacities()] == [True, True, False]
    assert visitor.page.locator(".stage .path").get_attribute("points").count(",") == 3


def test_image_stays_where_it_is_when_a_window_is_forced(visit):
    visitor = visit()
    before = visitor.page.locator(".image").bounding_box()
    visitor.page.mouse.click(before["x"] + 60, before["y"] + 60)
    visitor.page.locator(".window.forced").wait_for()
    assert visitor.page.locator(".image").bounding_box() == before


def test_page_fills_the_screen_it_is_shown_on(visit):
    laptop = visit(viewport={"width": 1440, "height": 900}).page
    film = laptop.locator(".film").bounding_box()
    assert film["y"] + film["height"] <= 900
    laptop.mouse.wheel(0, 250)
    laptop.wait_for_function(
        "window.scrollY > 100 && document.querySelector('.transport').getBoundingClientRect().top >= 0"
    )
    projector = visit(viewport={"width": 1920, "height": 1080}).page
    assert projector.locator(".ocra-view").bounding_box()["width"] > 1200
    assert projector.evaluate("document.documentElement.scrollWidth") <= 1920
    film = projector.locator(".film").bounding_box()
    assert film["y"] + film["height"] <= 1080


def test_keys_play_and_step_from_anywhere_and_turn_tabs(visit):
    page = visit(reduced_motion="no-preference").page
    page.locator(".ocra-view:not(.playing)").wait_for()
    page.locator("h1").click()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".count").inner_text() == "Glimpse 2 of 3"
    page.keyboard.press("Space")
    page.locator(".playing").wait_for()
    page.keyboard.press("Space")
    page.locator(".ocra-view:not(.playing)").wait_for()
    page.get_by_role("tab", name="Draw").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="Upload").get_attribute("aria-selected") == "true"
    assert page.evaluate("document.activeElement.textContent.trim()") == "Upload"
    shown = page.locator(".count").inner_text()
    page.get_by_role("tab", name="Test image").click()
    page.locator("#ocra-number input").press("ArrowLeft")
    assert page.locator(".count").inner_text() == shown


def test_training_is_marked_on_the_slider(visit):
    page = visit().page
    page.locator('#ocra-glimpses[style*="--trained"]').wait_for()
    mark = page.locator("#ocra-glimpses").evaluate("slider => slider.style.getPropertyValue('--trained')")
    assert float(mark) == pytest.approx(2 / 19)


def test_server_that_does_not_answer_is_said(visit):
    visitor = visit()
    page = visitor.page
    waiting: list = []
    page.route("**/queue/join**", lambda route: waiting.append(route))
    page.locator(".stage").press("ArrowRight")
    page.locator(".silence", has_text="busy").wait_for()
    page.route("**/*", lambda route: route.abort() if route.request.method == "HEAD" else route.fallback())
    page.locator(".silence", has_text="stopped").wait_for()
    for route in waiting:
        route.continue_()
    page.locator(".silence").wait_for(state="hidden")
    visitor.errors.clear()  # the browser's own word on the request that failed


def test_any_action_that_waits_is_said(visit):
    visitor = visit()
    page = visitor.page
    page.get_by_role("tab", name="Test image").click()
    waiting: list = []
    page.route("**/queue/join**", lambda route: waiting.append(route))
    page.get_by_role("button", name="Next").first.click()
    page.locator(".silence", has_text="busy").wait_for()
    for route in waiting:
        route.continue_()
    page.unroute("**/queue/join**")
    page.locator(".silence").wait_for(state="hidden")
    page.get_by_role("button", name="Next").first.click()
    visitor.wait_for_subject("image 2")
    page.wait_for_timeout(3500)  # longer than the page's patience
    assert page.locator(".silence").is_hidden()


def test_action_that_cannot_be_sent_is_said(visit):
    visitor = visit()
    page = visitor.page
    page.get_by_role("tab", name="Test image").click()
    page.route("**/queue/join**", lambda route: route.abort())
    page.get_by_role("button", name="Next").first.click()
    page.locator(".silence", has_text="stopped").wait_for()
    visitor.errors.clear()  # the browser's own word on the request that failed


def test_a_broken_file_gives_one_sentence_and_a_good_one_its_preparation(visit, server, tmp_path):
    visitor = visit()
    broken = tmp_path / "notes.png"
    broken.write_text("this is no image")
    visitor.upload(broken)
    visitor.page.locator(".ocra-notice.error").wait_for()
    assert visitor.text(".ocra-notice").startswith("notes.png is not an image")
    assert "Test image 0" in visitor.text(".transport .subject")
    Image.new("L", (60, 60), 255).save(tmp_path / "paper.png")
    visitor.upload(tmp_path / "paper.png")
    visitor.wait_for_subject("paper.png")
    assert visitor.text(".said .now .answer") == "an empty image"
    assert "prepared" in visitor.text(".prepared summary")
    assert visitor.page.locator(".ocra-notice").count() == 0
    assert not [path for path in server.temporary.rglob("*") if path.name in ("notes.png", "paper.png")]


def test_a_file_that_is_too_large_is_refused_in_words(visit, tmp_path):
    visitor = visit()
    large = tmp_path / "large.png"
    large.write_bytes(bytes(11_000_000))
    visitor.upload(large)
    visitor.page.locator(".ocra-notice.error", has_text="large.png is larger than 10 MB").wait_for()


def test_same_file_from_two_visitors_at_once_is_seen_by_both(visit, tmp_path):
    visitors = [visit(), visit()]
    Image.effect_noise((60, 60), 90).save(tmp_path / "same.png")
    for visitor in visitors:
        visitor.upload(tmp_path / "same.png")
    for visitor in visitors:
        visitor.wait_for_subject("same.png")
        assert visitor.page.locator(".ocra-notice.error").count() == 0


def test_task_that_is_being_read_holds_up_nobody(visit, server):
    waiting, other = visit(), visit()
    waiting.page.get_by_role("tab", name="Test image").click()
    waiting.choose("ocra-task", "Slow digits")
    waiting.page.locator(".ocra-notice", has_text="Slow digits: reading the data").wait_for()
    other.page.get_by_role("tab", name="Test image").click()
    other.page.get_by_role("button", name="Next").click()
    other.wait_for_subject("Test image 1")
    waiting.page.locator(".ocra-notice", has_text="2 s so far").wait_for()
    server.let_slow_task_be_read()
    waiting.page.locator(".ocra-notice", has_text="so far").wait_for(state="detached")
    waiting.wait_for_subject("Test image 0")


def test_lists_that_are_merely_opened_change_nothing(visit):
    visitor = visit()
    visitor.draw()
    visitor.wait_for_subject("Your drawing")
    glimpses = visitor.page.locator("#ocra-glimpses input[type=number]")
    glimpses.fill("2")
    glimpses.press("Tab")
    visitor.page.locator(".count", has_text="of 2").wait_for()
    visitor.page.get_by_role("tab", name="Test image").click()
    run = visitor.page.locator(".ocra-view").get_attribute("data-run")
    for control in ("ocra-model", "ocra-task"):
        field = visitor.page.locator(f"#{control} input")
        field.click()
        field.press("Escape")
        field.click()
        field.press("Tab")
    visitor.page.get_by_role("button", name="Release all").press(
        "Enter"
    )  # whatever was sent is answered by now
    visitor.page.wait_for_timeout(700)
    assert "Your drawing" in visitor.text(".transport .subject")
    assert visitor.page.locator(".ocra-view").get_attribute("data-run") == run
    assert visitor.page.locator(".count").inner_text() == "Glimpse 2 of 2" and glimpses.input_value() == "2"


def test_answer_so_far_is_shown_and_its_verdict_at_the_end(visit):
    visitor = visit()
    bars = visitor.page.locator(".capsules .chosen th")
    for t in range(3):
        visitor.page.locator(".film button").nth(t).click()
        said = visitor.text(".said .now")
        assert (("right" in said) or ("wrong" in said)) == (t == 2)
        assert ("so far" in said) == (t < 2)
        assert [name for name in bars.all_inner_texts() if name in said] == bars.all_inner_texts()
        assert visitor.page.locator(".said .now").count() == 1


def test_two_models_side_by_side(visit):
    visitor = visit()
    visitor.page.get_by_label("Compare side by side").click()
    visitor.wait_until_shown(".looks.two")
    names = visitor.page.locator(".look").evaluate_all("looks => looks.map((look) => look.dataset.model)")
    assert names == ["three", "five"]
    assert len({stage.bounding_box()["y"] for stage in visitor.page.locator(".stage").all()}) == 1
    assert visitor.text(".count") == "Glimpse 5 of 5"
    assert visitor.page.locator(".look").nth(0).locator(".film .now").get_attribute("data-t") == "2"
    assert visitor.page.locator(".look").nth(1).locator(".film .now").get_attribute("data-t") == "4"


def test_two_visitors_at_once_keep_their_own_images(visit):
    first, second = visit(), visit()
    first.draw()
    second.page.get_by_role("tab", name="Test image").click()
    second.page.get_by_role("button", name="Next").click()
    first.wait_for_subject("Your drawing")
    second.wait_for_subject("Test image 1")
    box = second.page.locator(".image").bounding_box()
    second.page.mouse.click(box["x"] + 30, box["y"] + 30)
    second.page.locator(".window.forced").wait_for()
    first.page.get_by_label("Compare side by side").click()
    first.wait_until_shown(".looks.two")
    assert "Your drawing" in first.text(".transport .subject")
    assert first.page.locator(".window.forced").count() == 0
    assert "Test image 1" in second.text(".transport .subject")
    assert second.page.locator(".looks.two").count() == 0


def test_a_phone_shows_all_of_it_without_scrolling_sideways(visit):
    visitor = visit(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, color_scheme="dark"
    )
    page = visitor.page
    page.get_by_label("Compare side by side").click()
    visitor.wait_until_shown(".looks.two")
    page.locator(".stage").first.tap()
    page.locator(".window.forced").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.body.classList.contains('dark')")
    overhanging = page.locator(".ocra-view *, .ocra-pad *").evaluate_all(
        """elements => elements.filter((element) => !element.closest(".stage, .stack")
             && element.getBoundingClientRect().right > 391).map((element) => element.className)"""
    )
    assert overhanging == []
    heights = page.locator(".ocra-view button, .ocra-pad button").evaluate_all(
        "buttons => buttons.map((button) => button.getBoundingClientRect().height)"
    )
    assert min(heights) >= 44


def test_server_reaches_no_other_machine_and_tells_no_one(server, visit):
    visit().draw()
    found: Path = server.foreign
    assert not found.exists(), found.read_text()
