"""Questions or requests of a user, from a file in any usual format.

    one question per line      questions.txt
    columns                    questions.csv, questions.tsv
    JSON lines                 {"question": ..., "answer": ..., "id": ...}, or prompt, problem, input, messages
    OpenAI Batch files         {"custom_id": ..., "method": "POST", "url": ..., "body": {...}}

Each may be gzipped. A Batch file is passed on as it is: it may be larger than memory. Everything else becomes
questions, with correct answers if the file has them, and with ids made from the text if it has none.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import orjson

from shadowprice.errors import InputError
from shadowprice.formats.batch import BatchLine, as_batch, limits_in, parse_batch, read_batch, text_of
from shadowprice.formats.jsonl import located, parse_object, read_lines
from shadowprice.formats.limits import LIMIT_FIELDS
from shadowprice.formats.questions import GRADERS, Gold, Question, gold_text, usual_grader
from shadowprice.formats.rows import Row, form_of, read_rows
from shadowprice.formats.templates import PLAIN, prompted

__all__ = ["Fields", "Input", "read_input", "rows_as_input"]

# Names of fields; the first one that is found is used.
PROMPTS = ("question", "prompt", "problem", "input", "messages")
GOLDS = ("gold", "answer", "target")
IDS = ("custom_id", "id")
_BESIDE = ("grader", "dataset")
_BATCH = ("body", "custom_id", "method", "url")
# Fields beside `messages` that belong to the request, if lines are the bodies of requests.
_SETTINGS = (
    "model", *LIMIT_FIELDS, "n", "temperature", "top_p", "stop", "seed", "presence_penalty", "frequency_penalty",
    "reasoning_effort", "response_format", "tools", "tool_choice",
)  # fmt: skip
# Names that often, but not always, stand for the question or the correct answer: they are only suggested.
_LIKE_PROMPTS = ("instruction", "query", "text", "task", "user", "content", "request", "sentence", "q")
_LIKE_GOLDS = (
    "final_answer", "correct_answer", "expected_answer", "ground_truth", "answerkey", "answer_key", "expected",
    "expected_output", "reference", "ideal", "solution", "answers", "correct", "label", "output", "response", "a",
)  # fmt: skip
_LISTED = 12  # columns named in an error
_UNUSED = 5  # fields named that are not used


@dataclass(frozen=True)
class Fields:
    """The names of the fields with prompt, correct answer and id; None: the usual names."""

    prompt: str | None = None
    gold: str | None = None
    id: str | None = None

    def __bool__(self) -> bool:
        return any((self.prompt, self.gold, self.id))


@dataclass(frozen=True)
class Input:
    """The content of a file.

    path         the file, if it is a Batch file; its requests are read from there
    questions    its questions otherwise
    understood   a line that says how the file was understood
    gold         correct answers by id, for questions that have one
    template     the prompt that questions are put into; `system` goes before it, `model` is asked
    temperature  of requests that do not set one; None: the server's
    """

    label: str
    path: str | None
    questions: list[Question]
    understood: str = ""
    gold: Gold = field(default_factory=dict)
    template: str = PLAIN
    system: str | None = None
    model: str | None = None
    temperature: float | None = None

    @property
    def requests(self) -> str | list[dict[str, Any]]:
        """What `plan` and `Run` take: the path of a Batch file that goes as it is, or batch lines."""
        if self.path is None:
            return [self._record(question) for question in self.questions]
        if self.template == PLAIN and not self.system and self.temperature is None:
            return self.path
        return [self._in_template(line) for line in read_batch(self.path, self.label)]

    def batch(self) -> Iterator[BatchLine]:
        """The requests, one after the other."""
        requests = self.requests
        if isinstance(requests, str):
            return read_batch(requests, self.label)
        return parse_batch(as_batch(requests, self.label), self.label)

    def as_questions(self) -> list[Question]:
        """All requests as questions, without a template; those of a Batch file have no correct answer."""
        if self.path is None:
            return self.questions
        lines = (line.request for line in read_batch(self.path, self.label))
        return [Question(each.id, each.text, "", body=each.body) for each in lines]

    def _record(self, question: Question) -> dict[str, Any]:
        body = self._filled(prompted(question.request_body(), self.template, self.system))
        if self.model:
            body = {"model": self.model} | body | {"model": self.model}
        return {"custom_id": question.id, "method": "POST", "url": "/v1/chat/completions", "body": body}

    def _in_template(self, line: BatchLine) -> dict[str, Any]:
        record = parse_object(line.raw)
        try:
            return {**record, "body": self._filled(prompted(record["body"], self.template, self.system))}
        except InputError as error:
            raise located(error, self.label, line.number) from None

    def _filled(self, body: dict[str, Any]) -> dict[str, Any]:
        return body if self.temperature is None else {"temperature": self.temperature, **body}


def read_input(
    path: str | os.PathLike[str],
    *,
    label: str | None = None,
    fields: Fields | None = None,
    grader: str | None = None,
    template: str = PLAIN,
    system: str | None = None,
    model: str | None = None,
    temperature: float | None = None,
) -> Input:
    """Reads a file. Errors name it by `label`; `grader` replaces the graders of rows; for the rest see `Input`."""
    path, fields = os.fspath(path), fields or Fields()
    label = label or path
    named = [name.casefold() for name in (fields.prompt, fields.gold, fields.id) if name]
    known = {*PROMPTS, *GOLDS, *IDS, *named}
    form = form_of(path, label, known)
    if form == "json" and not fields.prompt and (note := _batch_note(path, label)) is not None:
        if fields:
            raise InputError("is a Batch file, whose fields have fixed names", path=label, fix="leave out --...-field")
        return Input(label, path, [], note, template=template, system=system, temperature=temperature)
    rows = read_rows(path, label, form, known)
    first = next(rows, None)
    if first is None:
        raise InputError("has no questions", path=label, fix="write at least one")
    columns = _Columns.of(first[1], fields, label, line=first[0] if form == "json" else None)
    if unfilled := next((name for name in first[1] if f"{{{name}}}" in template and f"{{{name}}}" != PLAIN), None):
        problem = f"has a field {unfilled}, and a template fills in nothing but {PLAIN}"
        raise InputError(problem, path=label, fix=f"write its content into the questions, and remove {{{unfilled}}}")
    questions = list(_questions(chain([first], rows), columns, grader, label))
    gold = {question.id: (question.gold, question.grader) for question in questions if question.gold}
    understood = f"{_counted(len(questions), 'question')} from {label}: {columns.in_words(form, questions)}"
    return Input(label, None, questions, understood, gold, template, system, model, temperature)


def rows_as_input(
    rows: Sequence[Mapping[str, Any]],
    *,
    label: str,
    fields: Fields | None = None,
    grader: str | None = None,
    template: str = PLAIN,
    system: str | None = None,
    model: str | None = None,
    temperature: float | None = None,
) -> Input:
    """Does the same for rows of a table: questions, or requests if there is a column `body`."""
    if not rows:
        return Input(label, None, [])
    fields = fields or Fields()
    if "body" in rows[0] and not fields.prompt:
        lines = list(parse_batch(as_batch(map(_without_nulls, rows), label), label))
        questions = [Question(line.request.id, line.request.text, "", body=line.request.body) for line in lines]
    else:
        columns = _Columns.of(rows[0], fields, label, line=None)
        questions = list(_questions(enumerate(map(_without_nulls, rows), start=1), columns, grader, label))
    gold = {question.id: (question.gold, question.grader) for question in questions if question.gold}
    return Input(label, None, questions, "", gold, template, system, model, temperature)


def _without_nulls(value: Any) -> Any:
    """A row without its null fields: in a table every row has the fields of all rows."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _batch_note(path: str, label: str) -> str | None:
    """How many requests a Batch file has; None if the first line shows that it is not a Batch file."""
    number, line = next(read_lines(path, label), (0, b""))
    try:
        record = parse_object(line)
    except InputError:
        if line == b"{":
            raise InputError("an object over several lines", path=label, line=number, fix=_ONE_LINE) from None
        return None if line else ""  # the reader of the file reports what is wrong
    if "body" not in record and (any(name in PROMPTS for name in _names(record)) or not record.keys() & {*_BATCH}):
        return None
    understood = f"{_counted(sum(1 for _ in read_lines(path, label)), 'request')} from {label} (OpenAI Batch)"
    if isinstance(record.get("custom_id"), int) and not isinstance(record["custom_id"], bool):
        understood += ": custom_id is a number; it is text in the results"
    return understood


_ONE_LINE = "write each on one line: jq -c . OLD > NEW.jsonl"


@dataclass(frozen=True)
class _Columns:
    """The names of the fields that are used; those the rows do not have are None."""

    prompt: str
    gold: str | None
    id: str | None
    grader: str | None = None
    dataset: str | None = None
    others: tuple[str, ...] = ()  # fields of the first row that are not used
    like_gold: str | None = None  # if no field has the correct answers: one that looks like them

    @classmethod
    def of(cls, row: Mapping[str, Any], fields: Fields, label: str, *, line: int | None) -> _Columns:
        names = _names(row)
        what = "field" if line else "column"
        there = ", ".join(list(names.values())[:_LISTED]) + (", ..." if len(names) > _LISTED else "")

        def find(given: str | None, usual: tuple[str, ...], option: str) -> str | None:
            if given is None:
                return _first_of(usual, names)
            if given.strip().casefold() not in names:
                problem = f"no {what} is called {given!r}: there are {there}"
                raise InputError(problem, path=label, line=line, fix=f"name one of them with {option}")
            return names[given.strip().casefold()]

        prompt = find(fields.prompt, PROMPTS, "--prompt-field")
        if prompt is None:
            problem = f"no {what} is called {', '.join(PROMPTS[:-1])} or {PROMPTS[-1]}: there are {there}"
            raise InputError(problem, path=label, line=line, fix=_way_to_questions(row, tabular=line is None))
        if not fields.prompt and prompt == names.get("input") and "instruction" in names:
            problem = "has instruction and input: the question is in two places"
            raise InputError(problem, path=label, line=line, fix="join them, or name one with --prompt-field NAME")
        gold, name = find(fields.gold, GOLDS, "--gold-field"), find(fields.id, IDS, "--id-field")
        beside = {field: names.get(field) for field in _BESIDE}
        used = {prompt, gold, name, *beside.values(), *(_SETTINGS if prompt == "messages" else ())}
        others = {each: names[each] for each in names if each and names[each] not in used}
        texts = {each: there for each, there in others.items() if isinstance(row[there], str | int | float)}
        like_gold = None if gold else _first_of(_LIKE_GOLDS, texts)
        return cls(prompt, gold, name, **beside, others=tuple(others.values()), like_gold=like_gold)

    def in_words(self, form: str, questions: list[Question]) -> str:
        """`question -> prompt, answer -> gold (math)`."""
        understood = "one question per line" if form == "text" else f"{self.prompt} -> prompt"
        if self.gold:
            graders = ", ".join(dict.fromkeys(each.grader for each in questions if each.gold))
            without = sum(not each.gold for each in questions)
            understood += (
                f", {self.gold} -> gold ({graders or 'none given'}{f'; {without:,} without' if without else ''})"
            )
        settings = dict.fromkeys(name for each in questions for name in each.body or () if name != "messages")
        if settings:
            understood += f", {', '.join(settings)} -> request"
        return understood + (f", {self.id} -> id" if self.id else "") + self._unused()

    def _unused(self) -> str:
        """Lists unused fields, with the option to use one as the correct answers if it looks like them."""
        if not self.others:
            return ""
        more = ", ..." if len(self.others) > _UNUSED else ""
        hint = f" (--gold-field {shlex.quote(self.like_gold)} grades with it)" if self.like_gold else ""
        return f"; not used: {', '.join(self.others[:_UNUSED])}{more}{hint}"


def _questions(rows: Iterator[Row], columns: _Columns, grader: str | None, label: str) -> Iterator[Question]:
    seen: set[str] = set()
    generated: Counter[str] = Counter()
    for number, row in rows:
        try:
            question = _question(row, columns, grader)
            if question.id and question.id in seen:
                raise InputError(f"id {question.id!r:.80} was used before", fix="give every question its own, or none")
        except InputError as error:
            raise located(error, label, number) from None
        if not question.id:
            question = replace(question, id=_made_id(question, generated, seen))
        seen.add(question.id)
        yield question


def _question(row: Mapping[str, Any], columns: _Columns, grader: str | None) -> Question:
    if columns.prompt not in row:
        others = [name for name in (*_BATCH[:1], *PROMPTS) if name in row]
        what = f"has {others[0]}, and the first line has {columns.prompt}" if others else f"no {columns.prompt}"
        raise InputError(what, fix="write all lines in one form" if others else "give every line a question")
    text, body = _prompt(row[columns.prompt], columns.prompt)
    if body is not None and columns.prompt == "messages":
        body |= {name: row[name] for name in _SETTINGS if row.get(name) is not None}
        limits_in(body)
    gold = gold_text(row.get(columns.gold), columns.gold) if columns.gold else ""
    grader = grader or (row.get(columns.grader) if columns.grader else None) or usual_grader(gold)
    if grader not in GRADERS:
        raise InputError(f"unknown grader {grader!r:.40}", fix=f"choose one of {', '.join(GRADERS)}")
    name = row.get(columns.id) if columns.id else None
    if isinstance(name, bool) or not isinstance(name, str | int | None):
        raise InputError(f"{columns.id} is {name!r:.40}", fix="give a text or a whole number")
    return Question(
        id="" if name is None else str(name).strip(),
        problem=text,
        gold=gold,
        dataset=str((columns.dataset and row.get(columns.dataset)) or ""),
        grader=grader,
        body=body,
    )


def _prompt(value: Any, name: str) -> tuple[str, dict[str, Any] | None]:
    """The text of a question; and its body, if it is a chat."""
    if isinstance(value, str) and name.casefold() == "messages" and value.lstrip()[:1] == "[":  # of a table
        value = _chat_in(value)
    if isinstance(value, str) and value.strip():
        return value.strip(), None
    if value is None or value == "" or value == [] or isinstance(value, str):
        raise InputError(f"{name} is empty", fix="give every line a question, or remove it")
    if not isinstance(value, list) or not all(isinstance(message, dict) and message.get("role") for message in value):
        raise InputError(f"{name} is {value!r:.40}", fix="give a text, or a list of messages with role and content")
    if value[-1]["role"] == "assistant":
        raise InputError(
            f"the last of {name} is the assistant's", fix="end with the question; --prompt-field names another field"
        )
    text = text_of(value)
    if not text.strip():
        raise InputError(f"{name} has no text", fix="give every line a question, or remove it")
    return text, {"messages": value}


def _chat_in(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise InputError(f"messages is {text!r:.40}, not JSON", fix="write it with json.dumps") from None


def _way_to_questions(row: Mapping[str, Any], *, tabular: bool) -> str:
    """What to do about a file whose first row has no question."""
    for name, value in row.items():
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict) and any(each in PROMPTS for each in _names(inner)):
            path = f".{name}[]" if inner is not value else f". + .{name}"
            return f"they are inside {name}: jq -c '{path}' OLD > NEW.jsonl"
    similar = _first_of(_LIKE_PROMPTS, _names(row))
    fix = f"name the questions with --prompt-field {shlex.quote(similar or 'NAME')}"
    return f"{fix}, or begin with a line of column names" if tabular else fix


def _made_id(question: Question, made: Counter[str], seen: set[str]) -> str:
    """An id that is the same for the same question in every file; a repetition in one file ends in -2.

    `made` counts those made so far: a file may repeat one question a hundred thousand times.
    """
    content = question.problem.encode() if question.body is None else orjson.dumps(question.body)
    name = f"q-{hashlib.sha256(content).hexdigest()[:12]}"
    while True:
        made[name] += 1
        unique = name if made[name] == 1 else f"{name}-{made[name]}"
        if unique not in seen:
            return unique


def _first_of(wanted: Iterable[str], names: Mapping[str, str]) -> str | None:
    """The first name that is found, as it is written."""
    return next((names[name] for name in wanted if name in names), None)


def _names(record: Mapping[str, Any]) -> dict[str, str]:
    """The names of fields, by the form in which they are compared."""
    return {name.strip().casefold(): name for name in record}


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
