"""Results as JSON lines: the one place that writes and reads them.

An answer is a line of an OpenAI Batch output file, a request without an answer a line of its error file. What the
format has no field for is under `shadowprice`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson

from shadowprice.types import Completion, Failure, Result, Usage

# The code of a declined request in the error file.
DECLINED = "budget_abandoned"
# In a ledger, names with this prefix are estimates of a request's length, not requests of the run.
ESTIMATE = "shadowprice.estimate:"


def result_line(result: Result) -> bytes:
    """The line of a result, without its newline."""
    usage = result.usage
    own: dict[str, Any] = {
        "outcome": result.outcome,
        "cost": result.cost,
        "usage": {"output": usage.output, "input": usage.input, "cached": usage.cached},
        "correct": result.correct,
    }
    if result.completion is None:
        failure = result.failure or Failure(result.outcome, result.outcome.replace("_", " "))
        error = {"code": failure.code, "message": failure.message, **failure.details}
        record = {"id": None, "custom_id": result.id, "response": None, "error": error}
        return orjson.dumps({**record, "shadowprice": own | dict(result.extra)})
    answer = result.completion
    own |= {
        "finish": answer.finish,
        "tokens": answer.tokens,
        "usage_source": answer.usage_source,
        "flags": answer.flags,
    }
    if result.failure:
        own["failure"] = asdict(result.failure)
    return orjson.dumps(
        {
            "id": f"shadowprice-{result.id}",
            "custom_id": result.id,
            "response": {"status_code": 200, "request_id": answer.body.get("id", ""), "body": answer.body},
            "error": None,
            "shadowprice": own | dict(result.extra),
        }
    )


_OWN = {"outcome", "cost", "usage", "correct", "finish", "tokens", "usage_source", "flags", "failure"}


def parse_result(line: bytes) -> Result:
    """What `result_line` wrote; raises KeyError, TypeError or ValueError for anything else."""
    record = orjson.loads(line)
    own = record["shadowprice"]
    answer, failure = None, None
    if record["error"]:
        details = {name: value for name, value in record["error"].items() if name not in ("code", "message")}
        failure = Failure(record["error"]["code"], record["error"]["message"], details)
    else:
        body = record["response"]["body"]
        failure = Failure(**own["failure"]) if "failure" in own else None
        answer = Completion(
            text=text_of_response(body),
            tokens=own["tokens"],
            finish=own["finish"],
            usage_source=own["usage_source"],
            flags=tuple(own["flags"]),
            body=body,
        )
    return Result(
        id=record["custom_id"],
        outcome=own["outcome"],
        usage=Usage(**own["usage"]),
        cost=own["cost"],
        completion=answer,
        failure=failure,
        correct=own["correct"],
        extra={name: value for name, value in own.items() if name not in _OWN},
    )


def text_of_response(body: dict[str, Any]) -> str:
    """The text of the first answer in a response of OpenAI's form."""
    choice = (body.get("choices") or [{}])[0]
    text = choice["message"].get("content") if "message" in choice else choice.get("text")
    return str(text or "")


# --- parts of answers --------------------------------------------------------------------------


def chunk_line(part: Completion, *, sample: int, landing: bool) -> bytes:
    """A part of an answer, as the ledger keeps it until the answer is complete."""
    return orjson.dumps({"sample": sample, "landing": landing, "part": asdict(part)})


def parse_chunk(line: bytes) -> tuple[Completion, int, bool]:
    """The part, its sample, and whether it was a landing."""
    record = orjson.loads(line)
    part = record["part"]
    return (
        Completion(**{**part, "flags": tuple(part["flags"]), "ids": tuple(part["ids"])}),
        record["sample"],
        record["landing"],
    )
