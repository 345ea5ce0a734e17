"""What becomes of the answers of a run: graded where the correct answer is known, else votes where several may come."""

from __future__ import annotations

from collections.abc import Sequence

from shadowprice.formats.questions import Gold
from shadowprice.grading import grade
from shadowprice.grading.agreement import Ballots
from shadowprice.types import Completion, Request


class Referee:
    """Made for the requests of a run.

    votes     whether requests that nobody grades may have several answers
    unsafe    run programs to grade them even where there is no sandbox
    voted     the requests that are voted on
    unvaried  how many are not, since they ask for temperature 0, where all answers are the same
    """

    def __init__(self, requests: Sequence[Request], gold: Gold | None, *, votes: bool, unsafe: bool = False) -> None:
        self._gold, self._unsafe, self._ballots = gold or {}, unsafe, Ballots()
        ungraded = [request for request in requests if votes and request.id not in self._gold]
        self.voted = {request.id for request in ungraded if request.body.get("temperature") != 0}
        self.unvaried = len(ungraded) - len(self.voted)

    def grade(self, id: str, answer: Completion) -> bool | None:
        """Whether an answer is correct; None: unknown."""
        if id not in self._gold:
            return None
        correct, grader = self._gold[id]
        options = {"unsafe": self._unsafe} if grader == "code" else {}
        return grade(grader, answer.text, correct, truncated=answer.finish == "length", **options).correct

    def vote(self, id: str, answer: Completion) -> str | None:
        """What an answer votes for; None: it does not vote, or nobody votes on its request."""
        if id not in self.voted or answer.finish != "stop":
            return None
        return self._ballots.vote(id, answer.text)
