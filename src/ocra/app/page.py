"""The page: Gradio's controls on the left, the view on the right, and what happens when they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from ocra.app.looking import MOST_ROUTINGS, MOST_UNTIL, Choice, companion, most_glimpses, whole
from ocra.app.sharing import parts_of
from ocra.app.studio import NOTHING, Result, Session, Studio
from ocra.app.subjects import (
    MOST_CLUTTER,
    MOST_NUMBER,
    MOST_SEED,
    Pick,
    Request,
    SceneRequest,
    scene_like,
    task_of,
)
from ocra.app.uploads import MOST_BYTES
from ocra.app.view import empty
from ocra.data import get_task, task_names
from ocra.data.corruptions import CORRUPTIONS, MOST
from ocra.model.network import Network
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
                    self._add_experiment(first)
            gr.HTML(FOOTER, apply_default_css=False)
            self._wire(
                session, [session, self.view, message, self.timer, self.number, self.trial, self.tally]
            )

    def _add_sources(self, model: Network) -> None:
        """The four ways to an image. Gradio finds the events of our scripts when the program runs, hence Any."""
        with gr.Tabs(elem_id="ocra-sources") as self.sources:
            with gr.Tab("Draw", id="draw"):
                self.pad: Any = _scripted(_pad(model), "pad.js", "ocra-draw")
            with gr.Tab("Upload", id="upload"):
                self.drop: Any = _scripted(DROP, "upload.js", "ocra-upload")
            with gr.Tab("Test image", id="test"):
                self.task = _tasks(model)
                self.number, self.seed = _number_and_seed("Number", "ocra-number", "ocra-seed")
                with gr.Row(elem_classes="ocra-pair"):
                    self.another = gr.Button("Another one", variant="primary", min_width=0)
                    self.following = gr.Button("Next", min_width=0)
            with gr.Tab("Scene", id="scene"):
                self._add_scene(model)

    def _add_scene(self, model: Network) -> None:
        """Digits laid out by hand, as the lab makes them."""
        with gr.Group(elem_id="ocra-scene"):
            self.overlap, self.clutter = _overlap(model), _clutter(model)
            self.contrast = gr.Slider(0.05, 1, 1, step=0.05, label="Contrast", elem_id="ocra-contrast")
            self.severity = gr.Slider(0, MOST, 0, step=0.5, label="Noise", elem_id="ocra-severity")
            kinds = [(name.replace("_", " "), name) for name in CORRUPTIONS]
            self.noise = gr.Dropdown(kinds, value="gaussian", label="Kind of noise", elem_id="ocra-noise")
            self.trial, self.scene_seed = _number_and_seed("Trial", "ocra-trial", "ocra-scene-seed")
        with gr.Row(elem_classes="ocra-pair"):
            self.other_digits = gr.Button("Other digits", variant="primary", min_width=0)
            self.next_trial = gr.Button("Next", min_width=0)
        self.tally = gr.HTML("", elem_id="ocra-tally", apply_default_css=False)

    def _add_controls(self, first: Network) -> None:
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
                self.other_glimpses = _glimpses(self.studio.models[second], "ocra-other-glimpses", fewer)

    def _add_experiment(self, first: Network) -> None:
        """What can be done to a model while it looks."""
        with gr.Accordion("Experiment", open=False, elem_id="ocra-experiment") as self.experiment:
            self.until = gr.Slider(0, MOST_UNTIL, 0, step=0.05, label="Stop when sure", elem_id="ocra-until")
            self.silenced = _silenced(first)
            self.routings = gr.Slider(
                0, MOST_ROUTINGS, 0, step=1, label="Routings (0: its own)", elem_id="ocra-routings"
            )
            self.second_only = gr.Checkbox(
                False, label="Only in the second column", elem_id="ocra-second-only", visible=False
            )

    def _wire(self, session: gr.State, outputs: list[Any]) -> None:
        """Connect every control to an action."""
        controls = [
            self.model, self.glimpses, self.compare, self.other, self.other_glimpses, self.until, self.routings,
            self.silenced, self.second_only,
        ]  # fmt: skip
        scene: list[Any] = [
            self.trial, self.overlap, self.clutter, self.contrast, self.noise, self.severity, self.scene_seed
        ]  # fmt: skip
        known, asked = [session, *controls], [session, self.task, self.number, self.seed, *controls]
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
        everything = [
            *controls, self.second, self.sources, self.experiment, self.pad, self.task, self.seed, *scene[1:]
        ]  # fmt: skip
        self.blocks.load(self.opened, [session], [*outputs, *everything], **quiet)
        self.pad.drawn(self.drawn, known, outputs, **carrying)
        self.drop.uploaded(self.uploaded, known, outputs, **carrying)
        self.view.force(self.moved, known, outputs, **carrying)
        self.timer.tick(self.waited, known, outputs, **quiet)
        for event in (self.number.input, self.task.input, self.seed.input):
            event(self.asking("this"), asked, outputs, **quiet)
        self.another.click(self.asking("any"), asked, outputs, **quiet)
        self.following.click(self.asking("next"), asked, outputs, **quiet)
        for control in scene:
            control.input(self.laying_out("this"), [*known, *scene], outputs, **quiet)
        self.other_digits.click(self.laying_out("any"), [*known, *scene], outputs, **quiet)
        self.next_trial.click(self.laying_out("next"), [*known, *scene], outputs, **quiet)
        of_model = [self.glimpses, self.pad, self.task, self.other, self.silenced, self.overlap, self.clutter]
        self.model.input(self.other_model, known, [*outputs, *of_model], **quiet)
        for event in (self.other.input, self.compare.input):
            event(
                self.other_second,
                known,
                [*outputs, self.other_glimpses, self.second, self.second_only],
                **quiet,
            )
        for control in (self.glimpses, self.other_glimpses, self.until, self.routings, self.silenced):
            control.input(self.changed, known, outputs, **quiet)
        self.second_only.input(self.changed, known, outputs, **quiet)

    def opened(self, held: Session, request: gr.Request) -> tuple[Any, ...]:
        """The page was opened, perhaps with an address that says what to show."""
        found = self.studio.open(str(request.query_params))
        choice, asked, models = found.choice, found.asked, self.studio.models
        held = replace(held, following=found.forced, warning=" ".join(found.problems))
        result = self.studio.test(held, asked, choice)
        scene = asked if isinstance(asked, SceneRequest) else None
        model, other = models[choice.model], models[choice.other]
        changed = bool(choice.until or choice.routings or choice.silenced)
        overlap, clutter = _overlap(model), _clutter(model)
        if scene is not None:
            overlap, clutter = gr.Slider(value=scene.overlap or 0), gr.Slider(value=scene.clutter or 0)
        more = [
            choice.model, _glimpses(model, "ocra-glimpses", whole(choice.glimpses)), choice.compare, choice.other,
            _glimpses(other, "ocra-other-glimpses", whole(choice.other_glimpses)), choice.until, choice.routings,
            _silenced(model, choice.silenced), gr.Checkbox(value=choice.second_only, visible=choice.compare),
            gr.Column(visible=choice.compare), gr.Tabs(selected="scene") if scene else gr.skip(),
            gr.Accordion(open=True) if changed else gr.skip(), _pad(model),
            _tasks(model, asked.task) if isinstance(asked, Request) else gr.skip(), asked.seed, overlap, clutter,
            *((scene.contrast, scene.noise, scene.severity, scene.seed) if scene else [gr.skip()] * 4),
        ]  # fmt: skip
        return _outputs(result, *more)

    def drawn(self, event: gr.EventData, held: Session, *now: Any) -> tuple[Any, ...]:
        """A drawing."""
        return _outputs(self.studio.draw(held, event.image, Choice(*now)))

    def moved(self, event: gr.EventData, held: Session, *now: Any) -> tuple[Any, ...]:
        """The gaze was moved, or let go."""
        return _outputs(self.studio.force(held, event.windows, Choice(*now), event.turn))

    def uploaded(self, event: gr.EventData, held: Session, *now: Any) -> tuple[Any, ...]:
        """A file has arrived, or something prevented it."""
        return _outputs(self.studio.upload(held, event.token, event.name, Choice(*now), event.problem))

    def asking(self, pick: Pick) -> Callable[..., tuple[Any, ...]]:
        """A test image: that of this number, the next, or any."""

        def ask(
            held: Session, task: str, number: float | None, seed: float | None, *now: Any
        ) -> tuple[Any, ...]:
            return _outputs(self.studio.test(held, Request(task, number, pick, seed or 0), Choice(*now)))

        return ask

    def laying_out(self, pick: Pick) -> Callable[..., tuple[Any, ...]]:
        """A scene: that of this trial, the next, or any."""

        def lay_out(held: Session, *values: Any) -> tuple[Any, ...]:
            now, (trial, overlap, clutter, contrast, noise, severity, seed) = values[:-7], values[-7:]
            scene = SceneRequest(trial, overlap, clutter, contrast, noise, severity, pick, seed or 0)
            return _outputs(self.studio.test(held, scene, Choice(*now)))

        return lay_out

    def waited(self, held: Session, *now: Any) -> tuple[Any, ...]:
        """A second has passed while a task is being read."""
        return _outputs(self.studio.wait(held, Choice(*now)))

    def other_model(self, held: Session, *now: Any) -> tuple[Any, ...]:
        """Another model, with its own number of glimpses, pen, task, parts and model to compare with."""
        choice, unchanged = Choice(*now), [gr.skip()] * 7
        if held.choice is not None and choice.model == held.choice.model:
            return _outputs(Result(held), *unchanged)
        if choice.model not in self.studio.models:
            return _outputs(self.studio.again(held, choice), *unchanged)
        model = self.studio.models[choice.model]
        if isinstance(
            held.asked, Request
        ):  # the list of tasks goes with the model, and no image is taken by that
            held = replace(held, asked=replace(held.asked, task=task_of(model).name))
        second = None if choice.compare else companion(self.studio.models, choice.model)
        kept = [part for part in choice.silenced if part in parts_of(model)]
        choice = replace(
            choice, glimpses=model.config.glimpses, other=second or choice.other, silenced=tuple(kept)
        )
        more = [_glimpses(model, "ocra-glimpses"), _pad(model), _tasks(model), second or gr.skip()]
        more += [_silenced(model, kept), _overlap(model), _clutter(model)]
        return _outputs(self.studio.again(held, choice), *more)

    def other_second(self, held: Session, *now: Any) -> tuple[Any, ...]:
        """Another model to compare with, or the switch to compare."""
        choice, last, unchanged = Choice(*now), held.choice, [gr.skip()] * 3
        if last is not None and (choice.other, choice.compare) == (last.other, last.compare):
            return _outputs(Result(held), *unchanged)
        if choice.other not in self.studio.models:
            return _outputs(self.studio.again(held, choice), *unchanged)
        model = self.studio.models[choice.other]
        own = choice.other != choice.model
        count = model.config.glimpses if own else whole(choice.other_glimpses)
        result = self.studio.again(held, replace(choice, other_glimpses=count))
        slider = _glimpses(model, "ocra-other-glimpses", count)
        shown = gr.Column(visible=choice.compare), gr.Checkbox(visible=choice.compare)
        return _outputs(result, slider, *shown)

    def changed(self, held: Session, *now: Any) -> tuple[Any, ...]:
        """Another number of glimpses, or something else done to the models."""
        return _outputs(self.studio.again(held, Choice(*now)))


def _scripted(value: str, script: str, name: str) -> gr.HTML:
    """HTML with a script of ours that keeps it alive."""
    code = (FOLDER / script).read_text("utf-8")
    return gr.HTML(value, js_on_load=code, elem_id=name, apply_default_css=False)


def _pad(model: Network) -> str:
    """The drawing pad, with a pen as wide as the strokes the model was trained on."""
    task = task_of(model)
    return PAD.format(pen=task.pen_width, hint=escape(task.drawing_hint))


def _tasks(model: Network, chosen: str = "") -> gr.Dropdown:
    """Every task that has test images; by default the model's own is chosen."""
    own = task_of(model)
    tasks = [get_task(name) for name in dict.fromkeys([*task_names(), own.name])]
    choices = [(task.title or task.name, task.name) for task in tasks if task is own or not task.private]
    return gr.Dropdown(choices, value=chosen or own.name, label="Task", elem_id="ocra-task")


def _glimpses(model: Network, name: str, value: int | None = None) -> gr.Slider:
    most = most_glimpses(model)
    value = value or model.config.glimpses
    return gr.Slider(1, max(most, 2), value, step=1, label="Glimpses", elem_id=name, interactive=most > 1)


def _number_and_seed(label: str, number: str, seed: str) -> tuple[gr.Number, gr.Number]:
    """Two fields side by side for which image of how it is made; number, seed: their names in the page."""
    limits: Any = {"precision": 0, "minimum": 0, "min_width": 0}
    with gr.Row(elem_classes="ocra-pair"):
        return (
            gr.Number(0, label=label, elem_id=number, maximum=MOST_NUMBER, **limits),
            gr.Number(0, label="Seed", elem_id=seed, maximum=MOST_SEED, **limits),
        )


def _overlap(model: Network) -> gr.Slider:
    """How much two digits overlap; of no use where scenes are of another number."""
    usual = scene_like(model)
    two = usual.overlap is not None
    return gr.Slider(
        0,
        1,
        usual.overlap or 0,
        step=0.05,
        label="Overlap",
        elem_id="ocra-overlap",
        interactive=two,
    )


def _clutter(model: Network) -> gr.Slider:
    usual = scene_like(model).clutter or 0
    return gr.Slider(0, MOST_CLUTTER, usual, step=1, label="Distractors", elem_id="ocra-clutter")


def _silenced(model: Network, chosen: Sequence[str] = ()) -> gr.Dropdown:
    """The parts of a model that can be silenced."""
    parts = [(name, part) for part, name in parts_of(model).items()]
    about: Any = {"multiselect": True, "interactive": bool(parts)}
    return gr.Dropdown(parts, value=list(chosen), label="Silence (lesion)", elem_id="ocra-silenced", **about)


def _outputs(result: Result, *more: Any) -> tuple[Any, ...]:
    """What Gradio is told of a result: session, view, notice, timer, number, trial, tally, and more controls."""
    scene = isinstance(result.session.asked, SceneRequest)
    numbers = (None, result.number) if scene else (result.number, None)
    values = (result.view, result.notice, *numbers, result.tally)
    view, notice, *rest = (gr.skip() if value is None else value for value in values)
    return result.session, view, notice, gr.Timer(active=result.session.waiting), *rest, *more


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
