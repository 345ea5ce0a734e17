"""The parsers of `shadowprice run` and `shadowprice collect`."""

from __future__ import annotations

import argparse

from shadowprice.cli.options import EXIT, POLICIES, Commands, add_command, add_market, add_model

PROBE_AGES = "0,16,32,64,128,192,256,384,512,768,1024,1536,25%,50%,75%"
_RUN = """\
Answers a batch file on a real model so that the most get answered and the budget is never exceeded.
Forecasts every request, clears the market, runs the admitted with their grants as hard limits, and
offers what they did not use to those that were abandoned, until nobody can pay. Everything is kept in
a run folder: after Ctrl-C or a crash the same command with --resume goes on where it stopped and pays
for nothing twice.

  shadowprice run requests.jsonl --budget 200k --base-url http://127.0.0.1:8000/v1 --model NAME
  shadowprice run requests.jsonl --budget 20k --local

--accounting metered pays for tokens when they are generated, not when they are granted. The index of a
query is the chance of a correct answer per token it is expected to take from here; the highest index
generates next, 64 tokens at least, and a query whose index falls waits. It needs no policy, and wants
forecasts with spread and solve. Answers are gone on with from where they stopped, which is cheap on
servers that cache prefixes (llama.cpp, vLLM, SGLang); servers that cannot go on are noticed, and answer in
one go, up to the age where the index falls below the price. When the budget is spent, answers that were
begun are written as far as they came, with the finish_reason length.

  shadowprice run requests.jsonl --budget 200k --base-url http://127.0.0.1:8000/v1 --accounting metered

--policy tale first asks a teacher how many tokens each request needs, divides the budget in
proportion, and tells every limit in its prompt as well. The teacher is the model that answers, and is
paid from the budget: 16 tokens at most for an estimate, half of the budget for all. --teacher-url
names another, which is counted but not charged. A reply that is not one whole number is asked for
once more; where there is still none the forecast stands in. A model that thinks aloud first is no
teacher. --max-tokens bounds what a wild estimate can take.

  shadowprice run requests.jsonl --budget 200k --base-url http://127.0.0.1:8000/v1 --policy tale \\
    --teacher-url http://127.0.0.1:8001/v1 --teacher-model LARGER
"""
_COLLECT = """\
Answers every question under a large cap, grades the answers, and writes traces: the data that
forecasters are trained on and experiments replay. Greedy unless --temperature is given.

  shadowprice collect questions.jsonl --out traces.jsonl.gz --local --max-tokens 512
  shadowprice collect math500 --out traces.jsonl.gz --base-url http://127.0.0.1:8000/v1 --model NAME

A question is a line {"id": ..., "problem": ..., "gold": ...}, optionally with dataset and grader.
The paper's benchmarks come from the Hugging Face hub by name: gsm8k-train, gsm8k-test, math-train,
math500, olympiadbench, amc23, aime24, aime25, minerva, humaneval, mbpp, humaneval+, mbpp+,
bigcodebench. A file of that name comes first; hf:NAME is always the benchmark.
"""


def add_run(commands: Commands) -> None:
    run = add_command(
        commands, "run", "answer a batch file on a real model within a budget", _RUN, f"{POLICIES}\n{EXIT}"
    )
    add_market(run)
    add_model(run)
    run.add_argument("--out", metavar="FILE", help="answers (default: IN.answers.jsonl)")
    run.add_argument(
        "--accounting",
        choices=["reserved", "metered"],
        default="reserved",
        help="what counts against the budget: grants (unused ones flow back), or tokens as they are generated",
    )
    run.add_argument("--no-reclaim", action="store_true", help="one clearing only: what is not used stays unused")
    run.add_argument(
        "--samples",
        type=int,
        default=1,
        metavar="K",
        help="answers a query may have from its grant, in turn (default: 1)",
    )
    run.add_argument(
        "--gold",
        metavar="FILE",
        help="JSONL of custom_id, gold, grader: answers are graded, and a sample that is right stops the rest",
    )
    run.add_argument(
        "--teacher-url",
        metavar="URL",
        help="tale: a server with another model to ask for estimates; the key is $TEACHER_API_KEY",
    )
    run.add_argument(
        "--teacher-model", default="", metavar="NAME", help="its name there (default: as each request says)"
    )
    run.set_defaults(command=_run, policy=None)


def add_collect(commands: Commands) -> None:
    collect = add_command(commands, "collect", "answer and grade questions under a large cap: traces", _COLLECT, EXIT)
    collect.add_argument("file", metavar="QUESTIONS", help="JSON lines of id, problem, gold; or a benchmark's name")
    collect.add_argument("--out", required=True, metavar="FILE", help="traces; .gz is compressed")
    collect.add_argument("--samples", type=int, default=1, metavar="K", help="answers to each question (default: 1)")
    collect.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    collect.add_argument("--max-tokens", type=int, default=4096, metavar="N", help="the cap (default: 4096)")
    collect.add_argument("--grader", help="math, exact, numeric or code, instead of the question's own")
    collect.add_argument("--limit", type=int, metavar="N", help="the first N questions only")
    collect.add_argument("--mirror", metavar="DIR", help="copies of the hub's sets, as DIR/openai/gsm8k (no network)")
    collect.add_argument(
        "--prompt-template",
        default="plain",
        metavar="NAME",
        help="plain, math, code, or a file with {problem} in it: how questions are put (default: plain)",
    )
    collect.add_argument(
        "--probe",
        nargs="?",
        const=PROBE_AGES,
        metavar="AGES",
        help=f"ask for the final answer after the first tokens of each answer too (default: {PROBE_AGES})".replace(
            "%", "%%"
        ),
    )
    collect.add_argument("--json", action="store_true", help="print the verdict as JSON")
    collect.add_argument("--quiet", action="store_true", help="no progress")
    add_model(collect)
    collect.set_defaults(command=_collect)


def _run(options: argparse.Namespace) -> int:
    from shadowprice.cli.run import run_command

    return run_command(options)


def _collect(options: argparse.Namespace) -> int:
    from shadowprice.cli.run import collect_command

    return collect_command(options)
