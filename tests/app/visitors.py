"""Small saved models, and somebody who uses the page in a browser."""

from pathlib import Path
from urllib.parse import urlparse

import torch

from ocra.config import ModelConfig
from ocra.model.ocra import OCRA
from ocra.model.weights import ModelInfo

SMALL = {"filters": 4, "hidden": 32, "primary_capsules": 8, "primary_size": 4, "capsule_size": 4}
STROKES = [
    [(0.2, 0.3), (0.4, 0.2), (0.4, 0.45), (0.3, 0.5), (0.45, 0.55), (0.4, 0.8), (0.2, 0.75)],
    [(0.5, 0.2), (0.8, 0.2), (0.6, 0.8)],
]

MEASURE_WINDOW = """async (look) => {
    const window = look.querySelector(".window");
    await Promise.all(window.getAnimations().map((animation) => animation.finished));
    const image = look.querySelector(".image").getBoundingClientRect();
    const scale = look.dataset.w / image.width;
    const {left, right, top, bottom} = window.getBoundingClientRect();
    return {x: ((left + right) / 2 - image.left) * scale - 0.5, y: ((top + bottom) / 2 - image.top) * scale - 0.5,
            width: window.getBBox().width};
}"""


def save_model(
    folder: Path,
    seed: int,
    task: str = "multimnist",
    names: list[str] | None = None,
    root: Path | None = None,
    **options: object,
) -> str:
    """Write a small untrained model and return its folder."""
    torch.manual_seed(seed)
    model = OCRA(ModelConfig(**{**SMALL, **options}))
    if model.config.attention:
        with torch.no_grad():  # windows that differ from step to step, as trained ones do
            model.read_attention.weight.mul_(40)
            model.read_attention.bias.copy_(torch.tensor([0.2, -0.1, 0.0, -0.5]))
    saved = {"name": task, "root": root and str(root), "class_names": names}
    model.save_pretrained(folder, ModelInfo.from_dict({"task": saved, "class_names": names}, model.config))
    return str(folder)


class Visitor:
    """One browser context with its page, and everything that went wrong in it."""

    def __init__(self, browser, url: str, query: str = "", **options: object) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlparse(request.url).hostname or ""))
        self.page.goto(url + query)
        self.wait_until_shown()

    def wait_until_shown(self, look: str = ".look") -> None:
        """Wait until the page has taken up a pass that arrived: only then does it know its own step."""
        self.page.locator(f"{look} .film .now").first.wait_for(state="attached")

    def draw(self, strokes: list = STROKES) -> None:
        box = self.page.locator(".ocra-pad canvas").bounding_box()
        for stroke in strokes:
            places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
            self.page.mouse.move(*places[0])
            self.page.mouse.down()
            for place in places[1:]:
                self.page.mouse.move(*place, steps=3)
            self.page.mouse.up()

    def upload(self, file: Path) -> None:
        self.page.get_by_role("tab", name="Upload").click()
        self.page.locator("#ocra-upload input[type=file]").set_input_files(file)

    def choose(self, control: str, value: str) -> None:
        """Choose from one of Gradio's lists."""
        self.page.locator(f"#{control} input").click()
        self.page.get_by_role("option", name=value).click()

    def wait_for_subject(self, title: str) -> None:
        self.page.locator(".transport .subject", has_text=title).wait_for()
        self.wait_until_shown()

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def window(self) -> dict[str, float]:
        """The current window in pixels of the model's image, from the place it has on the screen."""
        return self.page.locator(".look").first.evaluate(MEASURE_WINDOW)
