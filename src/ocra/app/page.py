"""The page: Gradio's controls on the left, the view on the right, and what happens when they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from ocra.app.networks import Network, Networks
from ocra.app.studio import NOTHING, Choice, Result, Session, Studio, whole
from ocra.app.subjects import MOST_NUMBER, random_number
from ocra.app.view import empty, notice
from ocra.data import get_task, task_names
from ocra.errors import OcraError

FOLDER = Path(__file__).parent
HEADER = """<header class="ocra-header"><h1>OCRA</h1><p>A network that looks before it answers. It sees a
picture through a window that it moves by itself, recognises one thing at each glimpse, and draws what it
saw.</p></header>"""
FOOTER = """<footer class="ocra-footer"><p>Object-centric recurrent attention, after Adeli, Ahn &amp;
Zelinsky. Pictures are recognised on the machine that serves this page and are not kept.</p></footer>"""
PAD = """<div class="ocra-pad" data-pen="{pen}"><div class="sheet"><canvas aria-label="Drawing pad"></canvas>
<p>{invitation}</p></div><div class="tools"><button type="button" class="recognise">Recognise</button>
<button type="button" class="undo">Undo</button><button type="button" class="clear">Clear</button></div>
</div>"""
ARCHIVE = "Reading the archive of house numbers: this takes a while the first time."
HOUR = 3600


class Sources(NamedTuple):
    """The three ways to a picture."""

    pad: gr.HTML
    file: gr.File
    task: gr.Dropdown
    number: gr.Number
    another: gr.Button
    following: gr.Button


class Models(NamedTuple):
    """Which model, how many glimpses, what to compare it with: the controls of a Choice, in its order."""

    model: gr.Dropdown
    glimpses: gr.Slider
    compare: gr.Checkbox
    other: gr.Dropdown
    other_glimpses: gr.Slider


def build(networks: Networks) -> gr.Blocks:
    """The page for these networks."""
    first = networks[networks.names[0]]
    with gr.Blocks(title="OCRA", analytics_enabled=False, delete_cache=(HOUR, HOUR)) as page:
        session = gr.State(Session(), time_to_live=24 * HOUR)
        gr.HTML(HEADER, apply_default_css=False)
        with gr.Row(elem_id="ocra-main"):
            with gr.Column(elem_id="ocra-picture", min_width=0):
                sources = _sources(first)
                message = gr.HTML("", elem_id="ocra-message", apply_default_css=False)
            with gr.Column(elem_id="ocra-result", min_width=0):
                view = _scripted(empty(NOTHING), "view.js", "ocra-view")
            with gr.Column(elem_id="ocra-choice", min_width=0):
                models, second = _models(networks)
        gr.HTML(FOOTER, apply_default_css=False)
        _wire(page, Actions(Studio(networks)), sources, models, second, session, view, message)
    return page


def _scripted(value: str, script: str, name: str) -> gr.HTML:
    """HTML with a script of ours that keeps it alive."""
    code = (FOLDER / script).read_text("utf-8")
    return gr.HTML(value, js_on_load=code, elem_id=name, apply_default_css=False)


def _pad(network: Network) -> str:
    """The drawing pad, with a pen that suits the network."""
    task = network.task.task
    return PAD.format(pen=task.pen_width, invitation=escape(task.drawing_hint))


def _tasks(network: Network) -> gr.Dropdown:
    """Every task that has test pictures, the network's own chosen."""
    own = network.task.name
    tasks = [get_task(name) for name in task_names()]
    choices = [(task.title or task.name, task.name) for task in tasks if task.name == own or not task.private]
    return gr.Dropdown(choices, value=own, label="Task", elem_id="ocra-task")


def _sources(network: Network) -> Sources:
    with gr.Tabs(elem_id="ocra-sources"):
        with gr.Tab("Draw"):
            pad = _scripted(_pad(network), "pad.js", "ocra-draw")
        with gr.Tab("Upload"):
            label = "A photograph, a scan, a drawing"
            file = gr.File(label=label, type="filepath", height=220, elem_id="ocra-upload")
        with gr.Tab("Test picture"):
            task = _tasks(network)
            number = gr.Number(
                0, label="Number", precision=0, minimum=0, maximum=MOST_NUMBER, elem_id="ocra-number"
            )
            with gr.Row(elem_id="ocra-step-through"):
                another = gr.Button("Another one", variant="primary", min_width=0)
                following = gr.Button("Next", min_width=0)
    return Sources(pad, file, task, number, another, following)


def _models(networks: Networks) -> tuple[Models, gr.Column]:
    """The controls, and the column that only shows when comparing."""
    names = networks.names
    first = networks[names[0]]
    second = networks.companion(first.name) or names[min(1, len(names) - 1)]
    fewer = max(1, first.config.glimpses // 2)
    with gr.Group(elem_id="ocra-models"):
        model = gr.Dropdown(names, value=first.name, label="Model", elem_id="ocra-model")
        glimpses = _glimpses(first, "ocra-glimpses")
        compare = gr.Checkbox(False, label="Compare side by side", elem_id="ocra-compare")
        with gr.Column(visible=False, elem_id="ocra-second") as column:
            other = gr.Dropdown(names, value=second, label="With", elem_id="ocra-other")
            other_glimpses = _glimpses(first, "ocra-other-glimpses", fewer if second == first.name else None)
    return Models(model, glimpses, compare, other, other_glimpses), column


def _glimpses(network: Network, name: str, value: int | None = None) -> gr.Slider:
    most = network.most_glimpses
    value = value or network.config.glimpses
    return gr.Slider(1, max(most, 2), value, step=1, label="Glimpses", elem_id=name, interactive=most > 1)


class Actions:
    """What happens when the controls are used; `now` is what the model controls say."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio

    def drawn(self, event: gr.EventData, held: Session, *now: Any) -> Result:
        """A drawing."""
        return self.studio.draw(held, event.picture, Choice(*now))

    def moved(self, event: gr.EventData, held: Session, *now: Any) -> Result:
        """The gaze was moved, or let go."""
        return self.studio.force(held, event.windows, Choice(*now), event.turn)

    def uploaded(self, held: Session, path: str | None, *now: Any) -> tuple[Any, ...]:
        """A file; its place on the page is cleared for the next one."""
        return *self.studio.upload(held, path, Choice(*now)), None

    def tested(self, held: Session, task: str, number: float | None, *now: Any) -> Iterator[tuple[Any, ...]]:
        """A test picture; an archive that has to be read first is announced."""
        choice = Choice(*now)
        if self.studio.takes_long(task, choice):
            yield held, gr.skip(), notice(ARCHIVE)
        yield self.studio.test(held, task, number, choice)

    def another(self, held: Session, task: str, _: float | None, *now: Any) -> Iterator[tuple[Any, ...]]:
        """Any test picture, and its number."""
        yield from self._counted_out(held, task, random_number, *now)

    def following(
        self, held: Session, task: str, number: float | None, *now: Any
    ) -> Iterator[tuple[Any, ...]]:
        """The next test picture, and its number."""
        after = int(number or 0) + 1
        yield from self._counted_out(held, task, lambda count: after % count, *now)

    def _counted_out(
        self, held: Session, task: str, pick: Callable[[int], int], *now: Any
    ) -> Iterator[tuple[Any, ...]]:
        """The test picture that is picked from so many, and its number."""
        choice = Choice(*now)
        if self.studio.takes_long(task, choice):
            yield held, gr.skip(), notice(ARCHIVE), gr.skip()
        number = pick(self.studio.how_many(task, choice))
        yield *self.studio.test(held, task, number, choice), number

    def other_model(self, held: Session, *now: Any) -> tuple[Any, ...]:
        """Another model, with its own number of glimpses, pen, task and model to compare with."""
        choice = Choice(*now)
        try:
            network = self.studio.networks[choice.model]
        except OcraError:  # the view says so itself
            return *self.studio.again(held, choice), *[gr.skip()] * 4
        slider = _glimpses(network, "ocra-glimpses")
        result = self.studio.again(held, replace(choice, glimpses=network.config.glimpses))
        companion = None if choice.compare else self.studio.networks.companion(choice.model)
        return *result, slider, _pad(network), _tasks(network), companion or gr.skip()

    def other_second(self, held: Session, *now: Any) -> tuple[Any, ...]:
        """Another model to compare with, or the switch to compare."""
        choice = Choice(*now)
        try:
            network, count = self.studio.networks[choice.other], whole(choice.other_glimpses)
        except OcraError:
            return *self.studio.again(held, choice), gr.skip(), gr.skip()
        count = count if choice.other == choice.model else network.config.glimpses
        result = self.studio.again(held, replace(choice, other_glimpses=count))
        return *result, _glimpses(network, "ocra-other-glimpses", count), gr.Column(visible=choice.compare)

    def counted(self, held: Session, *now: Any) -> Result:
        """Another number of glimpses."""
        return self.studio.again(held, Choice(*now))


def _wire(
    page: gr.Blocks,
    actions: Actions,
    sources: Sources,
    models: Models,
    second: gr.Column,
    session: gr.State,
    view: gr.HTML,
    message: gr.HTML,
) -> None:
    """Connect every control to an action."""
    outputs = [session, view, message]
    known = [session, *models]
    asked = [session, sources.task, sources.number, *models]
    # Typed as Any: Gradio finds the events of our scripts, and of its own components, when the program runs.
    pad: Any = sources.pad
    gaze: Any = view
    # One queue for all actions: each starts from the session that the one before it left.
    quiet: dict[str, Any] = {
        "show_progress": "hidden",
        "trigger_mode": "always_last",
        "api_visibility": "private",
        "concurrency_id": "actions",
        "concurrency_limit": 1,
    }
    # A deferred event would arrive without its data, so those that carry any are all run.
    carrying = quiet | {"trigger_mode": "multiple"}
    pad.drawn(actions.drawn, known, outputs, **carrying)
    gaze.force(actions.moved, known, outputs, **carrying)
    file, task, number = sources.file, sources.task, sources.number
    file.upload(actions.uploaded, [session, file, *models], [*outputs, file], **quiet)
    for event in (number.input, task.input, page.load):
        event(actions.tested, asked, outputs, **quiet)
    sources.another.click(actions.another, asked, [*outputs, number], **quiet)
    sources.following.click(actions.following, asked, [*outputs, number], **quiet)
    of_model = [models.glimpses, pad, task, models.other]
    models.model.input(actions.other_model, known, [*outputs, *of_model], **quiet)
    for event in (models.other.input, models.compare.input):
        event(actions.other_second, known, [*outputs, models.other_glimpses, second], **quiet)
    for event in (models.glimpses.input, models.other_glimpses.input):
        event(actions.counted, known, outputs, **quiet)
