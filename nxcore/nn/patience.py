"""Patience: when a model's steps may be compared, and what a comparison does about learning.

A user's steps are to be as fast as plain ones after some seconds, whatever is being learnt. So steps are
compared while problems are learnt too. Where they are slower than plain ones by more than ``LOSS``, learning
pauses; where they are so without it, torch serves the modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from nxcore.nn.trial import LOSS, Trial
from nxcore.session import Session

SETTLED_S, PATIENCE_S = 1.0, 30.0
"""Seconds before a trial without a new choice, where nothing is being learnt; and before a capture, without
a choice or an answer of the process that measures for it."""

EARLY_S = 2.0
"""Seconds since the first call after which steps are compared while something is being learnt."""

POLL_S = 0.25
"""Seconds between two looks at the choices."""

AGAIN_S = 5.0
"""Seconds until the next trial, where the last one was held while problems were in exploration."""

HELD_S, LONGEST_S = 10.0, 160.0
"""Seconds of the first pause of learning, each of which is twice as long as the one before, and the most."""


class Patience:
    """Looks at the choices of a session, and holds its learning.

    Parameters
    ----------
    session : Session
        The session.

    Attributes
    ----------
    began : float
        When the first look was; minus infinity before it.
    poll : float
        When to look again.
    """

    def __init__(self, session: Session) -> None:
        self._session, self.began, self.poll = session, -math.inf, -math.inf
        self._made, self._since = -1, 0.0
        self._signs, self._heard = (-1, -1), 0.0
        self._pause, self._until = HELD_S, -math.inf

    @property
    def margin(self) -> float:
        """The loss that is no reason to give modules back: that of learning, while problems are learnt."""
        return LOSS if self._session.learning else 0.0

    def look(self, now: float) -> bool:
        """Look at the choices; return False until the next look is due."""
        self.began = now if self.began < 0 else self.began
        if now < self.poll:
            return False
        self.poll = now + POLL_S
        chooser = self._session.chooser
        if chooser.made != self._made:
            self._made, self._since = chooser.made, now
        if (signs := (chooser.made, chooser.survey.open)) != self._signs:
            self._signs, self._heard = signs, now
        return True

    def over(self, now: float, capture_is_due: Callable[[], bool]) -> bool:
        """Return whether steps may be compared, as of the last look."""
        waited, learning = now - self._since, self._session.learning
        if now - self._heard >= PATIENCE_S:
            return True
        if now - self.began < EARLY_S if learning else waited < SETTLED_S:
            return False
        return not capture_is_due()  # plain steps instead of a cell's would keep it from its capture

    def again(self, now: float, trial: Trial | None) -> float:
        """Return when the next trial is, although no choice may be made until then."""
        learnt = self._session.learning or (trial is not None and trial.margin > 0)
        return now + AGAIN_S if learnt else math.inf

    def aside(self, seconds: float) -> None:
        """Learn nothing beside plain steps that take so many seconds."""
        if self._session.learning:
            self._session.chooser.learner.pace.hold(seconds)

    def paused(self, now: float, trial: Trial) -> bool:
        """Pause learning if the last steps were too slow; return whether to compare anew.

        Steps that are too slow within a pause are so for another reason.
        """
        if not trial.loses or now < self._until:
            return False
        self._session.chooser.learner.pace.hold(self._pause)
        self._until, self._pause = now + self._pause, min(2 * self._pause, LONGEST_S)
        return True
