"""What a visitor can do, without the page: a session goes in; a session, the view and a notice come out."""

from __future__ import annotations

import secrets
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from threading import Lock
from typing import Concatenate, ParamSpec

from ocra.app.looking import Choice, Force, Look, look
from ocra.app.sharing import Opened, condition, from_query, in_short, to_file, to_python, to_query
from ocra.app.subjects import (
    PATIENCE,
    Reading,
    Request,
    SceneRequest,
    Subject,
    TestImages,
    from_drawing,
    from_upload,
)
from ocra.app.uploads import Uploads
from ocra.app.view import empty, notice, render, tally
from ocra.errors import OcraError
from ocra.model.network import Network
from ocra.viz.record import same

P = ParamSpec("P")
MOST_KEPT = 200
"""Visitors whose last view can be saved to a file."""
MOST_TRIALS = 2000
MOST_DRAWING = 4
"""Figures and animations that may wait to be drawn, one after the other."""
NOTHING = "Draw something, upload an image or take a test image: here the model will look at it."


@dataclass(frozen=True)
class Session:
    """What one visitor is looking at."""

    subject: Subject | None = None
    forced: tuple[Force, ...] = ()
    choice: Choice | None = None
    """The models as they were last shown, by which events that change nothing are known."""
    asked: Request | SceneRequest | None = None
    """The test image or scene that was asked for last."""
    following: tuple[Force, ...] = ()
    """Windows to be forced once the image that is waited for is there."""
    warning: str = ""
    """What an address asked for in vain, said until something else is done."""
    trials: tuple[tuple[str, int, bool], ...] = ()
    """Scenes that were shown: the condition, a number for the scene, and whether the answer was right."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    """By which files of what is shown can be had."""
    waiting: bool = False
    """Whether that one's task is still being read."""
    run: int = 0
    """Counts what is to be played from its first glimpse."""
    turn: int = 0
    """The page's own count of the last change to the forced windows that was answered."""


@dataclass(frozen=True)
class Result:
    """What an action changes on the page; None stays as it is."""

    session: Session
    view: str | None = None
    notice: str | None = None
    number: int | None = None
    """Of the test image or scene."""
    tally: str | None = None
    """How many trials of each condition were right."""


Act = Callable[Concatenate["Studio", Session, P], Result]


def _guarded(act: Act[P]) -> Act[P]:
    """An action that fails leaves everything as it was, and a sentence."""

    @wraps(act)
    def guarded(studio: Studio, session: Session, *args: P.args, **options: P.kwargs) -> Result:
        try:
            return act(studio, session, *args, **options)
        except OcraError as error:
            sentence = str(error)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            kind = type(error).__name__
            sentence = f"Something went wrong that should not have ({kind}); the server's log says more."
        return Result(session, notice=notice(sentence, "error"))

    return guarded


def _counted(
    trials: tuple[tuple[str, int, bool], ...], looks: Sequence[Look], subject: Subject
) -> tuple[tuple[str, int, bool], ...]:
    """The trials with those of a scene that was shown; where the gaze was moved by hand it is none."""
    scene = subject.origin
    if not isinstance(scene, SceneRequest) or any(seen.forced for seen in looks):
        return trials
    found = {(name, number): right for name, number, right in trials}
    for seen in looks:
        labels = [found.label for found in seen.answers[-1]]
        number = hash((int(scene.seed), int(scene.number or 0)))
        found.setdefault((condition(seen, scene), number), same(labels, subject.truth, False))
    return tuple((*key, right) for key, right in found.items())[-MOST_TRIALS:]


class Studio:
    """Every action of a visitor. None of them raises: what goes wrong is said on the page."""

    def __init__(
        self, models: Mapping[str, Network], uploads: Uploads | None = None, sources: Sequence[str] = ()
    ) -> None:
        """sources: where the models come from, as `ocra.predict` takes it; their names where that is not said."""
        self.models = models
        self.sources = dict(zip(models, sources or models, strict=True))
        self.uploads = uploads or Uploads()
        self.images = TestImages()
        self._shown: dict[str, tuple[Subject, Choice, tuple[Force, ...]]] = {}
        self._kept = Lock()
        self._drawing, self._to_draw = Lock(), 0

    def model(self, name: str) -> Network:
        """The model of this name."""
        if name not in self.models:
            raise OcraError(f"There is no model '{name}' on this page.")
        return self.models[name]

    def open(self, query: str) -> Opened:
        """What the address of the page asks for."""
        return from_query(query, self.models)

    @_guarded
    def show(self, session: Session, choice: Choice) -> Result:
        """Look at the session's subject with the chosen models."""
        return self._show(session, choice)

    def _show(self, session: Session, choice: Choice) -> Result:
        session = replace(session, choice=choice)
        if session.subject is None:
            return Result(session, empty(NOTHING), notice(session.warning))
        looks = self._looks(session.subject, choice, session.forced)
        self._keep(session.token, (session.subject, choice, session.forced))
        subject = session.subject
        view = render(
            subject,
            looks,
            session.forced,
            session.run,
            session.turn,
            address=to_query(choice, subject, session.forced),
            token=session.token,
            code=[to_python(seen, subject, self.sources[seen.name]) for seen in looks],
            changes=[in_short(seen) for seen in looks],
        )
        said = " ".join(filter(None, [session.warning, subject.note]))
        message = notice(said, "error" if session.warning else "note")
        counted = _counted(session.trials, looks, subject)
        known = replace(session, warning="", trials=counted)
        return Result(known, view, message, tally=tally(counted) if counted != session.trials else None)

    def _looks(self, subject: Subject, choice: Choice, forced: Sequence[Force]) -> list[Look]:
        """A pass for each column."""
        return [look(name, self.model(name), subject, how, forced) for name, how in choice.columns()]

    def _keep(self, token: str, shown: tuple[Subject, Choice, tuple[Force, ...]]) -> None:
        with self._kept:
            self._shown.pop(token, None)
            self._shown[token] = shown
            if len(self._shown) > MOST_KEPT:
                del self._shown[next(iter(self._shown))]

    def save(self, token: str, column: int, what: str) -> tuple[str, bytes]:
        """A file of what a visitor is shown, with its name. Takes seconds, so it is no action; raises OcraError."""
        with self._kept:
            shown = self._shown.get(token)
            if shown is None:
                raise OcraError("What you saw is not here any more; reload the page.")
            if self._to_draw >= MOST_DRAWING:
                raise OcraError("Others are saving figures just now; try again in a minute.")
            self._to_draw += 1
        try:
            subject, choice, forced = shown
            looks = self._looks(subject, choice, forced)
            if not 0 <= column < len(looks):
                raise OcraError("There is no such column; reload the page.")
            with self._drawing:
                return to_file(looks[column], subject, what)
        finally:
            with self._kept:
                self._to_draw -= 1

    def _take(self, session: Session, subject: Subject | None, choice: Choice) -> Result:
        """Look at another subject."""
        forced = session.following if subject is not None and subject.origin is not None else ()
        taken = replace(
            session, subject=subject, forced=forced, following=(), waiting=False, run=session.run + 1
        )
        return self._show(taken, choice)

    @_guarded
    def draw(self, session: Session, data: object, choice: Choice) -> Result:
        """Look at a drawing; an empty pad shows nothing."""
        return self._take(session, from_drawing(data) if data else None, choice)

    @_guarded
    def upload(
        self, session: Session, token: object, name: object, choice: Choice, problem: object = None
    ) -> Result:
        """Look at an uploaded file, which is forgotten as soon as it is read; problem: why it did not arrive."""
        if problem:
            raise OcraError(str(problem)[:300])
        content = self.uploads.take(str(token))
        return self._take(session, from_upload(content, str(name)[:200] or "Your file"), choice)

    def test(self, session: Session, request: Request | SceneRequest, choice: Choice) -> Result:
        """Look at a test image or a scene, or wait for its data to be read; nothing if it was asked for before."""
        if request == session.asked:
            return Result(session)
        request = replace(request, of=request.of or choice.model)
        return self._test(replace(session, asked=request, waiting=False), request, choice, PATIENCE)

    def wait(self, session: Session, choice: Choice) -> Result:
        """Look at the test image that was waited for, if its task has been read by now."""
        if not session.waiting or session.asked is None:
            return Result(session)
        return self._test(replace(session, waiting=False), session.asked, choice, 0)

    @_guarded
    def _test(
        self, session: Session, asked: Request | SceneRequest, choice: Choice, patience: float
    ) -> Result:
        try:
            subject, number = self.images.take(asked, self.model(asked.of or choice.model), patience)
        except Reading as reading:
            return Result(replace(session, waiting=True), notice=notice(str(reading)))
        known = replace(session, asked=replace(asked, number=number, pick="this"))
        return replace(self._take(known, subject, choice), number=number)

    @_guarded
    def force(self, session: Session, windows: object, choice: Choice, turn: object = None) -> Result:
        """Look at the same subject with the gaze moved; turn: the page's count of such changes."""
        number = turn if isinstance(turn, int) else session.turn
        if number < session.turn:  # a later change has overtaken this one
            return Result(session)
        return self._show(replace(session, forced=Force.parse(windows), turn=number), choice)

    def again(self, session: Session, choice: Choice) -> Result:
        """Look at the same subject with other models, from the first glimpse; nothing if they are the same."""
        if choice == session.choice:
            return Result(session)
        return self.show(replace(session, run=session.run + 1), choice)
