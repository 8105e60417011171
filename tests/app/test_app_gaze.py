"""Moving the gaze faster than the server answers, with keys only, in models of different sizes, and by ear."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from visitors import Visitor


@contextmanager
def slow_answers(page) -> Iterator[None]:
    """Hold back what the page sends until the end of the block."""
    waiting: list = []
    page.route("**/queue/join**", lambda route: waiting.append(route))
    yield
    for route in waiting:
        route.continue_()
    page.unroute("**/queue/join**")


def point(visitor: Visitor, x: float, y: float, column: int = 0) -> None:
    """Click at a place of the image, in shares of it."""
    image = visitor.page.locator(".image").nth(column)
    image.scroll_into_view_if_needed()
    box = image.bounding_box()
    visitor.page.mouse.click(box["x"] + box["width"] * x, box["y"] + box["height"] * y)


def steps(visitor: Visitor, column: int = 0) -> list[dict]:
    return visitor.page.locator(".look").nth(column).evaluate("(look) => JSON.parse(look.dataset.steps)")


def wait_for_turn(visitor: Visitor, turn: int) -> None:
    """Wait until so many changes to the forced windows are answered."""
    visitor.page.locator(f'.ocra-view[data-turn="{turn}"]').wait_for()


def test_every_press_of_a_key_counts_while_an_answer_is_on_its_way(visit):
    visitor = visit()
    visitor.page.locator(".film button").nth(1).click()
    before = steps(visitor)[1]
    visitor.page.locator(".stage").focus()
    with slow_answers(visitor.page):
        for _ in range(2):
            visitor.page.keyboard.press("ArrowRight")
            visitor.page.wait_for_timeout(300)
        assert visitor.window()["x"] == pytest.approx(before["read"][0] + 2, abs=0.1)
    wait_for_turn(visitor, 2)
    assert steps(visitor)[1]["read"][0] == pytest.approx(before["read"][0] + 2, abs=0.02)
    assert steps(visitor)[1]["read"][1] == pytest.approx(before["read"][1], abs=0.02)
    assert visitor.page.evaluate("document.activeElement.classList.contains('stage')")


def test_glimpses_that_are_forced_in_quick_succession_are_all_forced(visit):
    visitor = visit()
    frames = visitor.page.locator(".film button")
    with slow_answers(visitor.page):
        for t in (0, 1):
            frames.nth(t).click()
            point(visitor, 0.25, 0.75)
    wait_for_turn(visitor, 2)
    assert [step["forced"] for step in steps(visitor)] == [True, True, False]


def test_key_on_another_glimpse_starts_from_its_own_window_and_loses_no_other(visit):
    visitor = visit()
    frames = visitor.page.locator(".film button")
    frames.nth(0).click()
    before = steps(visitor)
    with slow_answers(visitor.page):
        for t in (0, 1):  # the second press follows before the first is sent
            visitor.page.locator(".film button").nth(t).evaluate("(frame) => frame.click()")
            visitor.page.locator(".stage").evaluate(
                """(stage) => stage.dispatchEvent(
                    new KeyboardEvent("keydown", {key: "ArrowDown", bubbles: true}))"""
            )
        after = visitor.window()
        assert after["x"] == pytest.approx(before[1]["read"][0], abs=0.1)
        assert after["y"] == pytest.approx(before[1]["read"][1] + 1, abs=0.1)
        visitor.page.wait_for_timeout(300)
    wait_for_turn(visitor, 2)
    assert [step["forced"] for step in steps(visitor)] == [True, True, False]
    assert steps(visitor)[0]["read"][1] == pytest.approx(before[0]["read"][1] + 1, abs=0.02)


def test_releasing_keeps_the_keyboard_focus(visit):
    visitor = visit()
    for name in ("Release it", "Release all"):
        point(visitor, 0.25, 0.75)
        visitor.page.locator(".window.forced").wait_for()
        button = visitor.page.get_by_role("button", name=name)
        button.press("Enter")
        visitor.page.wait_for_function("document.querySelector('.window.forced') === null")
        assert button.get_attribute("aria-disabled") == "true"
        assert visitor.page.evaluate("document.activeElement.textContent") == name


def test_window_that_is_drawn_in_one_column_is_the_same_part_of_the_image_in_the_other(visit):
    visitor = visit()
    visitor.draw()
    visitor.wait_for_subject("Your drawing")
    visitor.page.get_by_label("Compare side by side").click()
    visitor.wait_until_shown(".looks.two")
    visitor.choose("ocra-other", "clutter")
    visitor.wait_until_shown('[data-model="clutter"]')
    for column in (0, 1):
        visitor.page.locator(".look").nth(column).locator(".film button").nth(1).click()
        point(visitor, 0.25, 0.75, column)
        wait_for_turn(visitor, column + 1)
        places = []
        for k in (0, 1):
            step = steps(visitor, k)[1]
            placement = visitor.page.locator(".look").nth(k).get_attribute("data-placement")
            scale, _, left, top = map(float, placement.strip("[]").split(","))
            places.append(
                (step["read"][0] * scale + left, step["read"][1] * scale + top, step["read"][2] * scale)
            )
        assert places[0] == pytest.approx(places[1], abs=0.3)


def test_each_glimpse_is_told_but_not_while_they_are_played(visit):
    visitor = visit(reduced_motion="no-preference")
    page = visitor.page
    page.locator(".playing").wait_for()
    for region in (".count", ".place"):
        assert page.locator(region).get_attribute("aria-live") == "off"
    page.locator(".ocra-view:not(.playing)").wait_for()
    for region in (".count", ".place"):
        assert page.locator(region).get_attribute("aria-live") == "polite"


def test_drawing_stays_as_it_was_shown_when_another_model_brings_another_pen(visit):
    visitor = visit()
    visitor.draw()
    visitor.wait_for_subject("Your drawing")
    pad = visitor.page.locator(".ocra-pad canvas")
    shown = pad.evaluate("(canvas) => canvas.toDataURL()")
    visitor.choose("ocra-model", "clutter")
    visitor.wait_until_shown('[data-model="clutter"]')
    visitor.page.locator('.ocra-pad[data-pen="0.026"]').wait_for()
    assert pad.evaluate("(canvas) => canvas.toDataURL()") == shown
