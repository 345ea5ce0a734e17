"""The results of a job, as lines of files, as rows, or as a Ray Dataset; all from its ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shadowprice.accounts.sqlite import Ledger
from shadowprice.accounts.view import LEDGER
from shadowprice.cost import Rates
from shadowprice.distributed.cluster import load_data
from shadowprice.distributed.jobs import Job
from shadowprice.engine import Settings
from shadowprice.formats.declined import declined
from shadowprice.formats.files import Target, replacing
from shadowprice.formats.results import parse_result, result_line
from shadowprice.summary import Summary, Tally
from shadowprice.types import Failure, Result

if TYPE_CHECKING:
    import ray.data

_ROWS = 10_000  # of a block of the dataset


class RayRun:
    """A job that has ended, with its results from the ledger. Every row has exactly one result."""

    def __init__(self, job: Job) -> None:
        self._job, self._table = job, job.table
        self.folder = job.folder.path
        self.budget, self.policy, self.rounds = job.budget, job.policy, job.rounds
        self.settings, self.stopped = Settings(job.policy, rates=job.terms.rates), job.stopped
        self.prices: Rates | None = self.settings.rates if self.settings.rates.money else None
        self.teaching: dict[str, Any] | None = None
        self._summary: Summary | None = None

    @property
    def summary(self) -> Summary:
        if self._summary is None:
            with Ledger.reopen(self.folder / LEDGER) as ledger:
                for _ in self._lines(ledger):
                    pass
        assert self._summary is not None
        return self._summary

    def lines(self) -> Iterator[tuple[bool, bytes]]:
        """For each row, in order: whether its result is an answer, and the line as in the files of `run`."""
        with Ledger.reopen(self.folder / LEDGER) as ledger:
            yield from self._lines(ledger)

    def results(self) -> Iterator[Result]:
        return (parse_result(line) for _, line in self.lines())

    def rows(self) -> Iterator[dict[str, Any]]:
        """A flat row for each request: id, outcome, text, tokens, cost, correct, error."""
        for result in self.results():
            yield {
                "id": result.id,
                "outcome": result.outcome,
                "text": result.text,
                "tokens": result.usage.output,
                "cost": result.cost,
                "correct": result.correct,
                "error": result.failure.message if result.failure else None,
            }

    def to_dataset(self) -> ray.data.Dataset:
        """The rows as a Ray Dataset."""
        import pyarrow

        names = {"id": "string", "outcome": "string", "text": "string", "tokens": "int64", "cost": "int64"}
        schema = pyarrow.schema(
            [*((name, getattr(pyarrow, kind)()) for name, kind in names.items()),
             ("correct", pyarrow.bool_()), ("error", pyarrow.string())]
        )  # fmt: skip
        tables, rows = [], []
        for row in self.rows():
            rows.append(row)
            if len(rows) == _ROWS:
                tables.append(pyarrow.Table.from_pylist(rows, schema))
                rows = []
        tables.append(pyarrow.Table.from_pylist(rows, schema))
        dataset: ray.data.Dataset = load_data().from_arrow(tables)
        return dataset

    def write(self, out: Target, errors: Target) -> None:
        """Writes answers to `out` and other results to `errors`, in order; the files appear complete or not at all."""
        with replacing([errors, out]) as (error_file, out_file):
            for answered, line in self.lines():
                (out_file if answered else error_file).write(line + b"\n")

    def _lines(self, ledger: Ledger) -> Iterator[tuple[bool, bytes]]:
        tally = Tally()
        price = self.rounds[-1].price if self.rounds else None
        for names, forecast in self._table.named():
            for at, name in enumerate(names):
                line = ledger.line(name)
                if line is None:
                    result = declined(name, forecast, at, price)
                    if self.stopped:
                        failure = Failure("not_sent", f"not sent: {self.stopped}")
                        result = Result(name, "not_sent", failure=failure)
                    line = result_line(result)
                tally.add(parse_result(line))
                yield ledger.has_result(name), line
        correct = tally.grades[True] if tally.grades[True] + tally.grades[False] else None
        self._summary = tally.summary(
            ledger, requests=self._table.size, correct=correct, rounds=self.rounds, stopped=self.stopped
        )
