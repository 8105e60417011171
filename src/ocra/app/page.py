"""The page: Gradio's controls on the left, the view on the right, and what happens when they are used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, Literal

import gradio as gr

from ocra.app.looking import companion, most_glimpses
from ocra.app.studio import NOTHING, Choice, Result, Session, Studio, whole
from ocra.app.subjects import MOST_NUMBER, Request, task_of
from ocra.app.uploads import MOST_BYTES
from ocra.app.view import empty
from ocra.data import get_task, task_names
from ocra.model.ocra import OCRA
from ocra.viz.style import PALETTE, css_variables

FOLDER = Path(__file__).parent
HEADER = """<header class="ocra-header"><h1>OCRA</h1><p>A network that looks before it answers. It sees an
image through a window that it moves by itself, recognises one thing at each glimpse, and draws what it
saw.</p></header>"""
FOOTER = """<footer class="ocra-footer"><p>Object-centric recurrent attention, after Adeli, Ahn &amp;
Zelinsky. Images are recognised on the machine that serves this page and are not kept.</p></footer>"""
PAD = """<div class="ocra-pad" data-pen="{pen}"><div class="sheet"><canvas aria-label="Drawing pad"></canvas>
<p>{hint}</p><p class="onto">draw over it, or clear it</p></div>
<div class="tools"><button type="button" class="recognise">Recognise</button>
<button type="button" class="undo">Undo</button><button type="button" class="clear">Clear</button></div>
</div>"""
DROP = f"""<label class="ocra-drop" data-most="{MOST_BYTES}"><input type="file" accept="image/*">
<span>Drop a photograph, a scan or a drawing here, or <u>choose a file</u></span></label>"""
HOUR = 3600


class Page:
    """The page for the models of a studio; `now` is what the controls of the models say, in the order of a Choice."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        first = next(iter(studio.models.values()))
        with gr.Blocks(title="OCRA", analytics_enabled=False) as self.blocks:
            session = gr.State(Session(), time_to_live=24 * HOUR)
            self.timer = gr.Timer(1, active=False)
            gr.HTML(HEADER, apply_default_css=False)
            with gr.Row(elem_id="ocra-main"):
                with gr.Column(elem_id="ocra-image", min_width=0):
                    self._add_sources(first)
                    message = gr.HTML("", elem_id="ocra-message", apply_default_css=False)
                with gr.Column(elem_id="ocra-result", min_width=0):
                    self.view: Any = _scripted(empty(NOTHING), "view.js", "ocra-view")
                with gr.Column(elem_id="ocra-choice", min_width=0):
                    self._add_controls(first)
            gr.HTML(FOOTER, apply_default_css=False)
            self._wire(session, [session, self.view, message, self.timer, self.number])

    def _add_sources(self, model: OCRA) -> None:
        """The three ways to an image. Gradio finds the events of our scripts when the program runs, hence Any."""
        with gr.Tabs(elem_id="ocra-sources"):
            with gr.Tab("Draw"):
                self.pad: Any = _scripted(_pad(model), "pad.js", "ocra-draw")
            with gr.Tab("Upload"):
                self.drop: Any = _scripted(DROP, "upload.js", "ocra-upload")
            with gr.Tab("Test image"):
                self.task = _tasks(model)
                limits: Any = {"precision": 0, "minimum": 0, "maximum": MOST_NUMBER}
                self.number = gr.Number(0, label="Number", elem_id="ocra-number", **limits)
                with gr.Row(elem_id="ocra-step-through"):
                    self.another = gr.Button("Another one", variant="primary", min_width=0)
                    self.following = gr.Button("Next", min_width=0)

    def _add_controls(self, first: OCRA) -> None:
        """Which model, how many glimpses, and what to compare it with."""
        names = list(self.studio.models)
        second = companion(self.studio.models, names[0]) or names[min(1, len(names) - 1)]
        fewer = max(1, first.config.glimpses // 2) if second == names[0] else None
        with gr.Group(elem_id="ocra-models"):
            self.model = gr.Dropdown(names, value=names[0], label="Model", elem_id="ocra-model")
            self.glimpses = _glimpses(first, "ocra-glimpses")
            self.compare = gr.Checkbox(False, label="Compare side by side", elem_id="ocra-compare")
            with gr.Column(visible=False, elem_id="ocra-second") as self.second:
                self.other = gr.Dropdown(names, value=second, label="With", elem_id="ocra-other")
                self.other_glimpses = _glimpses(first, "ocra-other-glimpses", fewer)

    def _wire(self, session: gr.State, outputs: list[Any]) -> None:
        """Connect every control to an action."""
        controls = [self.model, self.glimpses, self.compare, self.other, self.other_glimpses]
        known, asked = [session, *controls], [session, self.task, self.number, *controls]
        # One queue for all actions, none of which takes long: each starts from the session the one before it left.
        quiet: dict[str, Any] = {
            "show_progress": "hidden",
            "trigger_mode": "always_last",
            "api_visibility": "private",
            "concurrency_id": "actions",
            "concurrency_limit": 1,
        }
        # A deferred event would arrive without its data, so those that carry any are all run.
        carrying = quiet | {"trigger_mode": "multiple"}
        self.pad.drawn(self.drawn, known, outputs, **carrying)
        self.drop.uploaded(self.uploaded, known, outputs, **carrying)
        self.view.force(self.moved, known, outputs, **carrying)
        self.timer.tick(self.waited, known, outputs, **quiet)
        for event in (self.blocks.load, self.number.input, self.task.input):
            event(self.asking("this"), asked, outputs, **quiet)
        self.another.click(self.asking("any"), asked, outputs, **quiet)
        self.following.click(self.asking("next"), asked, outputs, **quiet)
        of_model = [self.glimpses, self.pad, self.task, self.other]
        self.model.input(self.other_model, known, [*outputs, *of_model], **quiet)
        for event in (self.other.input, self.compare.input):
            event(self.other_second, known, [*outputs, self.other_glimpses, self.second], **quiet)
        for event in (self.glimpses.input, self.other_glimpses.input):
            event(self.counted, known, outputs, **quiet)

    def drawn(self, event: gr.EventData, held: Session, *now: Any) -> tuple[Any, ...]:
        """A drawing."""
        return _outputs(self.studio.draw(held, event.image, Choice(*now)))

    def moved(self, event: gr.EventData, held: Session, *now: Any) -> tuple[Any, ...]:
        """The gaze was moved, or let go."""
        return _outputs(self.studio.force(held, event.windows, Choice(*now), event.turn))

    def uploaded(self, event: gr.EventData, held: Session, *now: Any) -> tuple[Any, ...]:
        """A file has arrived, or something prevented it."""
        return _outputs(self.studio.upload(held, event.token, event.name, Choice(*now), event.problem))

    def asking(self, pick: Literal["this", "next", "any"]) -> Callable[..., tuple[Any, ...]]:
        """A test image: that of this number, the next, or any."""

        def ask(held: Session, task: str, number: float | None, *now: Any) -> tuple[Any, ...]:
            return _outputs(self.studio.test(held, Request(task, number, pick), Choice(*now)))

        return ask

    def waited(self, held: Session, *now: Any) -> tuple[Any, ...]:
        """A second has passed while a task is being read."""
        return _outputs(self.studio.wait(held, Choice(*now)))

    def other_model(self, held: Session, *now: Any) -> tuple[Any, ...]:
        """Another model, with its own number of glimpses, pen, task and model to compare with."""
        choice, unchanged = Choice(*now), [gr.skip()] * 4
        if held.choice is not None and choice.model == held.choice.model:
            return _outputs(Result(held), *unchanged)
        if choice.model not in self.studio.models:
            return _outputs(self.studio.again(held, choice), *unchanged)
        model = self.studio.models[choice.model]
        if held.asked is not None:  # the list of tasks goes with the model, and no image is taken by that
            held = replace(held, asked=replace(held.asked, task=task_of(model).name))
        second = None if choice.compare else companion(self.studio.models, choice.model)
        choice = replace(choice, glimpses=model.config.glimpses, other=second or choice.other)
        more = _glimpses(model, "ocra-glimpses"), _pad(model), _tasks(model), second or gr.skip()
        return _outputs(self.studio.again(held, choice), *more)

    def other_second(self, held: Session, *now: Any) -> tuple[Any, ...]:
        """Another model to compare with, or the switch to compare."""
        choice, last = Choice(*now), held.choice
        if last is not None and (choice.other, choice.compare) == (last.other, last.compare):
            return _outputs(Result(held), gr.skip(), gr.skip())
        if choice.other not in self.studio.models:
            return _outputs(self.studio.again(held, choice), gr.skip(), gr.skip())
        model = self.studio.models[choice.other]
        own = choice.other != choice.model
        count = model.config.glimpses if own else whole(choice.other_glimpses)
        result = self.studio.again(held, replace(choice, other_glimpses=count))
        slider = _glimpses(model, "ocra-other-glimpses", count)
        return _outputs(result, slider, gr.Column(visible=choice.compare))

    def counted(self, held: Session, *now: Any) -> tuple[Any, ...]:
        """Another number of glimpses."""
        return _outputs(self.studio.again(held, Choice(*now)))


def _scripted(value: str, script: str, name: str) -> gr.HTML:
    """HTML with a script of ours that keeps it alive."""
    code = (FOLDER / script).read_text("utf-8")
    return gr.HTML(value, js_on_load=code, elem_id=name, apply_default_css=False)


def _pad(model: OCRA) -> str:
    """The drawing pad, with a pen as wide as the strokes the model was trained on."""
    task = task_of(model)
    return PAD.format(pen=task.pen_width, hint=escape(task.drawing_hint))


def _tasks(model: OCRA) -> gr.Dropdown:
    """Every task that has test images, the model's own chosen."""
    own = task_of(model)
    tasks = [get_task(name) for name in dict.fromkeys([*task_names(), own.name])]
    choices = [(task.title or task.name, task.name) for task in tasks if task is own or not task.private]
    return gr.Dropdown(choices, value=own.name, label="Task", elem_id="ocra-task")


def _glimpses(model: OCRA, name: str, value: int | None = None) -> gr.Slider:
    most = most_glimpses(model)
    value = value or model.config.glimpses
    return gr.Slider(1, max(most, 2), value, step=1, label="Glimpses", elem_id=name, interactive=most > 1)


def _outputs(result: Result, *more: Any) -> tuple[Any, ...]:
    """What Gradio is told of a result: session, view, notice, timer, number, and more controls."""
    kept = [gr.skip() if value is None else value for value in (result.view, result.notice, result.number)]
    view, notice, number = kept
    return result.session, view, notice, gr.Timer(active=result.session.waiting), number, *more


def style() -> str:
    """Our style sheet, with the colours that figures have as well."""
    return css_variables(".dark {{ {} }}") + (FOLDER / "style.css").read_text("utf-8")


def theme() -> gr.themes.Base:
    """Colours and type of Gradio's own controls; nothing in it is fetched from elsewhere."""
    tokens = {
        "paper": ["body_background_fill"],
        "ink": ["body_text_color", "button_secondary_text_color"],
        "muted": ["body_text_color_subdued", "block_label_text_color", "block_title_text_color"],
        "card": [
            "block_background_fill", "block_label_background_fill", "background_fill_primary",
            "checkbox_label_background_fill", "button_primary_text_color", "button_secondary_background_fill",
        ],
        "field": ["background_fill_secondary", "input_background_fill", "button_secondary_background_fill_hover"],
        "line": [
            "block_border_color", "border_color_primary", "input_border_color", "button_secondary_border_color",
        ],
        "right": [
            "border_color_accent", "input_border_color_focus", "slider_color", "checkbox_background_color_selected",
            "checkbox_border_color_selected", "button_primary_background_fill",
            "button_primary_background_fill_hover", "button_primary_border_color", "link_text_color",
        ],
    }  # fmt: skip
    values = {"color_accent": PALETTE["right"][0]}
    for colour, names in tokens.items():
        for name in names:
            values[name], values[f"{name}_dark"] = PALETTE[colour]
    sans = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif")
    mono = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
    base = gr.themes.Base(font=sans, font_mono=mono, radius_size="sm", text_size="md", spacing_size="md")
    return base.set(**values, block_shadow="none", button_primary_shadow="none", block_label_shadow="none")
