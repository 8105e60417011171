"""What the page does, without the page: a session goes in, a session, the view and a notice come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ocra.app.looking import Force, look
from ocra.app.networks import Networks
from ocra.app.subjects import Subject, from_drawing, from_task, from_upload, how_many, takes_long
from ocra.app.view import empty, notice, render
from ocra.errors import OcraError

NOTHING = "Draw something, upload a picture or take a test picture: here the model will look at it."
Result = tuple["Session", str, str]
"""Session, HTML of the view, HTML of the notice."""


@dataclass(frozen=True)
class Session:
    """What one visitor is looking at."""

    subject: Subject | None = None
    forced: tuple[Force, ...] = ()
    run: int = 0
    """Counts what is to be played from its first glimpse."""
    turn: int = 0
    """The page's own count of the last change to the forced windows that was answered."""


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


class Studio:
    """Every action of a visitor."""

    def __init__(self, networks: Networks) -> None:
        self.networks = networks

    def show(self, session: Session, choice: Choice) -> Result:
        """Look at the session's subject with the chosen models."""
        subject = session.subject
        if subject is None:
            return session, empty(NOTHING), ""
        try:
            pairs = choice.pairs()
            looks = [look(self.networks[name], subject, count, session.forced) for name, count in pairs]
        except OcraError as error:
            return session, empty(NOTHING), notice(str(error), "error")
        view = render(subject, looks, session.forced, session.run, session.turn)
        return session, view, notice(subject.note)

    def take(self, session: Session, source: Callable[[], Subject | None], choice: Choice) -> Result:
        """Look at another subject; one that cannot be had leaves the old one, and a sentence."""
        try:
            subject = source()
        except OcraError as error:
            session, view, _ = self.show(session, choice)
            return session, view, notice(str(error), "error")
        return self.show(Session(subject, (), session.run + 1, session.turn), choice)

    def draw(self, session: Session, data: object, choice: Choice) -> Result:
        """Look at a drawing; an empty pad shows nothing."""
        return self.take(session, lambda: from_drawing(data) if data else None, choice)

    def upload(self, session: Session, path: str | None, choice: Choice) -> Result:
        """Look at an uploaded file, which is read once and deleted at once."""
        if path is None:
            return self.show(session, choice)
        try:
            return self.take(session, lambda: from_upload(path), choice)
        finally:
            Path(path).unlink(missing_ok=True)

    def test(self, session: Session, task: str, number: float | None, choice: Choice) -> Result:
        """Look at a test picture."""

        def subject() -> Subject:
            return from_task(task, number, self.networks[choice.model])

        return self.take(session, subject, choice)

    def takes_long(self, task: str, choice: Choice) -> bool:
        """Whether a test picture of this task needs an archive to be read first."""
        try:
            return takes_long(task, self.networks[choice.model])
        except OcraError:  # to be said when the model is used
            return False

    def how_many(self, task: str, choice: Choice) -> int:
        """How many test pictures there are to choose from."""
        try:
            return how_many(task, self.networks[choice.model])
        except OcraError:  # to be said when the picture is taken
            return 1

    def force(self, session: Session, windows: object, choice: Choice, turn: object = None) -> Result:
        """Look at the same subject with the gaze moved; turn: the page's count of such changes."""
        number = turn if isinstance(turn, int) else session.turn
        if number < session.turn:  # a later change has overtaken this one
            return self.show(session, choice)
        try:
            forced = Force.parse(windows)
        except OcraError as error:
            session, view, _ = self.show(session, choice)
            return session, view, notice(str(error), "error")
        return self.show(replace(session, forced=forced, turn=number), choice)

    def again(self, session: Session, choice: Choice) -> Result:
        """Look at the same subject with other models, from the first glimpse."""
        return self.show(replace(session, run=session.run + 1), choice)
