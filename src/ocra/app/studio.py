"""What a visitor can do, without the page: a session goes in; a session, the view and a notice come out."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Concatenate, ParamSpec

from ocra.app.looking import Force, look
from ocra.app.subjects import PATIENCE, Reading, Request, Subject, TestImages, from_drawing, from_upload
from ocra.app.uploads import Uploads
from ocra.app.view import empty, notice, render
from ocra.errors import OcraError
from ocra.model.ocra import OCRA

P = ParamSpec("P")
NOTHING = "Draw something, upload an image or take a test image: here the model will look at it."


@dataclass(frozen=True)
class Choice:
    """The models a visitor has chosen, as the controls say."""

    model: str
    glimpses: float
    compare: bool
    other: str
    other_glimpses: float

    def pairs(self) -> list[tuple[str, int]]:
        """(model, glimpses) of each column."""
        first = (self.model, whole(self.glimpses))
        return [first, (self.other, whole(self.other_glimpses))] if self.compare else [first]


def whole(glimpses: float | None) -> int:
    """A number of glimpses as a control sent it, checked."""
    try:
        return int(glimpses or 1)
    except (TypeError, ValueError, OverflowError):
        raise OcraError("The page sent a number of glimpses that cannot be read; reload it.") from None


@dataclass(frozen=True)
class Session:
    """What one visitor is looking at."""

    subject: Subject | None = None
    forced: tuple[Force, ...] = ()
    choice: Choice | None = None
    """The models as they were last shown, by which events that change nothing are known."""
    asked: Request | None = None
    """The test image that was asked for last."""
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
    """Of the test image."""


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


class Studio:
    """Every action of a visitor. None of them raises: what goes wrong is said on the page."""

    def __init__(self, models: Mapping[str, OCRA], uploads: Uploads | None = None) -> None:
        self.models = models
        self.uploads = uploads or Uploads()
        self.images = TestImages()

    def model(self, name: str) -> OCRA:
        """The model of this name."""
        if name not in self.models:
            raise OcraError(f"There is no model '{name}' on this page.")
        return self.models[name]

    @_guarded
    def show(self, session: Session, choice: Choice) -> Result:
        """Look at the session's subject with the chosen models."""
        return self._show(session, choice)

    def _show(self, session: Session, choice: Choice) -> Result:
        session = replace(session, choice=choice)
        if session.subject is None:
            return Result(session, empty(NOTHING), "")
        looks = [
            look(name, self.model(name), session.subject, count, session.forced)
            for name, count in choice.pairs()
        ]
        view = render(session.subject, looks, session.forced, session.run, session.turn)
        return Result(session, view, notice(session.subject.note))

    def _take(self, session: Session, subject: Subject | None, choice: Choice) -> Result:
        """Look at another subject."""
        taken = replace(session, subject=subject, forced=(), waiting=False, run=session.run + 1)
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

    def test(self, session: Session, request: Request, choice: Choice) -> Result:
        """Look at a test image, or wait for its task to be read; nothing if it was asked for before."""
        if request == session.asked:
            return Result(session)
        return self._test(replace(session, asked=request, waiting=False), request, choice, PATIENCE)

    def wait(self, session: Session, choice: Choice) -> Result:
        """Look at the test image that was waited for, if its task has been read by now."""
        if not session.waiting or session.asked is None:
            return Result(session)
        return self._test(replace(session, waiting=False), session.asked, choice, 0)

    @_guarded
    def _test(self, session: Session, asked: Request, choice: Choice, patience: float) -> Result:
        model = self.model(choice.model)
        try:
            subject, number = self.images.take(asked, model, patience)
        except Reading as reading:
            return Result(replace(session, waiting=True), notice=notice(str(reading)))
        known = replace(session, asked=Request(asked.task, number))
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
