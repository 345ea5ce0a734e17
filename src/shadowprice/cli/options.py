"""What the parsers of several commands share. Parsers import nothing heavy: --help must not wait for NumPy."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

EXIT = """\
exit codes:
  0    done
  2    usage or bad input
  3    done, and some requests were declined or failed, or a server exceeded the budget
  130  interrupted; a run continues with --resume
"""
INPUTS = """\
input, gzipped or not; the format of standard input is recognised by its content:
  questions.txt    one question per line
  questions.csv    column question (or prompt, problem, input); optional columns answer (or gold, target), id
                   and grader; .tsv with tabs
  questions.jsonl  fields of the same names; messages is a whole chat
  requests.jsonl   an OpenAI Batch file
"""
POLICIES = """\
policies:
  clear         one price per token, closed-form demand, declining (the paper's CLEAR)
  expected      the same market on the chance of a correct answer: uses spread and solve
  triangular, quadratic
                CLEAR with other utility curves
  auction       the shortest forecasts that fit
  heuristic     when scarce, the shorter half
  uniform       the same limit for everyone
  proportional  limits in proportion to the forecast, none declined
  tale          in proportion to a teacher model's estimates; plan uses the forecast instead
"""
ROUTES = """\
routes, a TOML file with a table per model (docs/routes.md):
  [[route]]
  name = "small"
  base_url = "http://127.0.0.1:8000/v1"    # or local = "smollm2-135m"
  model = "NAME"
  rates = { input = 0.05, output = 0.10 }  # dollars per million tokens; cached = 0.02
  context, api_key_env, max_concurrency, forecaster are optional
"""

LOCAL = {
    "context": "tokens of a prompt and its answer (default: what the model was trained for, at most 4096)",
    "threads": "threads (default: the physical cores)",
    "gpu-layers": "layers on the GPU (default: all, if llama.cpp was built for one)",
    "slots": "answers at the same time (default: --concurrency, at most 8)",
}

_CHOICE = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)")


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, with the option or command that may have been meant."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = list(sys.argv[1:] if args is None else args)
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unexpected arguments: {' '.join(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        if choice := _CHOICE.search(message):
            known = [name.strip(" '") for name in choice[2].split(",")]
            near = difflib.get_close_matches(choice[1], known, 1)
            if "argument COMMAND" in message:
                message = f"no command {choice[1]}" + ("" if near else f"; there are {', '.join(known)}")
            message = f"{message}; did you mean {near[0]}?" if near else message
        # If an option is mistyped, argparse may report that another one is missing.
        elif wrong := next(filter(None, map(self._unknown, self._given)), None):
            near = difflib.get_close_matches(wrong, self._option_string_actions, 1, 0.5)
            message = f"no option {wrong}" + (f"; did you mean {near[0]}?" if near else "")
        self.exit(2, f"{self.prog}: {message} (usage: {self.prog} --help)\n")

    def _unknown(self, argument: str) -> str | None:
        """The option in an argument, if there is no such option."""
        name = argument.partition("=")[0]
        if not name.startswith("--") or len(name) < 3:
            return None
        return None if any(known.startswith(name) for known in self._option_string_actions) else name


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def add_command(commands: Commands, name: str, about: str, description: str, epilog: str) -> argparse.ArgumentParser:
    shape = argparse.RawDescriptionHelpFormatter
    return commands.add_parser(name, help=about, description=description, epilog=epilog, formatter_class=shape)


def add_input(command: argparse.ArgumentParser, *, graded: bool = False) -> None:
    """The input file, and options for how it is read."""
    command.add_argument(
        "file", metavar="IN", help="questions or an OpenAI Batch file (see below); - is standard input"
    )
    command.add_argument(
        "--prompt-template",
        default="plain",
        metavar="NAME",
        help="how a question becomes a prompt: math, code, none, or a file with {problem} in it (default: none)",
    )
    command.add_argument("--system", metavar="TEXT", help="a system message for every request")
    fields = {"prompt": "the questions", "gold": "the correct answers", "id": "the ids"}
    for name, what in fields.items():
        command.add_argument(f"--{name}-field", metavar="NAME", help=f"the column or field of {what}")
    if graded:
        command.add_argument(
            "--grader",
            metavar="NAME",
            help="math, words, choice (its letter), numeric, exact or code (default: chosen by the form of the correct "
            "answer)",
        )


def add_force(command: argparse.ArgumentParser) -> None:
    command.add_argument("--force", action="store_true", help="replace existing files")


def add_market(command: argparse.ArgumentParser, *, policy: str = "expected") -> None:
    add_input(command, graded=command.prog.endswith(" run"))
    command.add_argument(
        "--budget",
        required=True,
        help="for all answers: 200000, 200k, 1.5M or 256/query tokens; with rates also '$5' or '$0.002/query'",
    )
    command.add_argument("--policy", default="expected", help=f"how the budget is divided (default: {policy})")
    where = command.add_mutually_exclusive_group()
    where.add_argument("--forecast", metavar="FILE", help="JSONL of custom_id, tokens, spread, solve: your own numbers")
    add_forecaster(where)
    add_scout(command)
    command.add_argument("--max-tokens", type=int, metavar="N", help="the most tokens that an answer may get")
    command.add_argument(
        "--errors",
        metavar="FILE",
        help="where requests without an answer go (default: OUT.declined.jsonl; - is standard output)",
    )
    command.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the policy, e.g. beta=0.002"
    )
    add_force(command)
    command.add_argument("--json", action="store_true", help="print the summary as JSON")
    command.add_argument("--quiet", action="store_true", help="no progress bar, and no note about the input")


def add_forecaster(command: argparse._ActionsContainer) -> None:
    command.add_argument(
        "--forecaster", metavar="DIR", help="a forecaster made by train (default: the one in the package)"
    )


def add_scout(command: argparse.ArgumentParser) -> None:
    about = "traces of another model that has answered the same questions, for a forecaster made by train --scout"
    command.add_argument("--scout", metavar="FILE", help=about)


def add_limit_field(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--limit-field",
        choices=["max_completion_tokens", "max_tokens"],
        help="the field with the limit of a chat (default: max_completion_tokens; older servers know only max_tokens)",
    )


def add_unsafe_code(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--unsafe-code",
        action="store_true",
        help="with the grader code: run programs even without a sandbox, with all your permissions",
    )


def _local_model(text: str) -> str:
    """The name or path of a model; refuses an input file given by mistake, as in `--local questions.csv`."""
    extension = os.path.splitext(text.lower().removesuffix(".gz"))[1]
    if extension in (".jsonl", ".json", ".csv", ".tsv", ".txt", ".ndjson"):
        raise argparse.ArgumentTypeError(
            f"{text} is not a model: name a GGUF file or a known model, and give the input before --local"
        )
    return text


def add_rates(command: argparse.ArgumentParser) -> None:
    for name, tokens, more in (
        ("in", "prompts", ""),
        ("out", "answers", "; with both rates, --budget may be in money"),
        ("cached", "prompts that the server had in its cache", " (default: --rate-in)"),
    ):
        about = f"dollars per million tokens of {tokens}{more}"
        command.add_argument(f"--rate-{name}", metavar="DOLLARS", help=about)
    command.add_argument(
        "--count",
        choices=["output", "input+output"],
        help="what a budget in tokens counts: answers only, or also every prompt that is sent (default: output)",
    )


def add_model(command: argparse.ArgumentParser, *, routes: bool = False) -> None:
    where = command.add_mutually_exclusive_group(required=True)
    if routes:
        where.add_argument("--routes", metavar="FILE", help="a TOML file of several models with their rates (below)")
    where.add_argument("--base-url", metavar="URL", help="an OpenAI-compatible server; the key is $OPENAI_API_KEY")
    where.add_argument(
        "--local",
        nargs="?",
        const="",
        type=_local_model,
        metavar="MODEL",
        help="a model on this machine: smollm2-135m (default), qwen2.5-coder-1.5b, the path of a GGUF file, or "
        "hf:OWNER/REPO/FILE.gguf",
    )
    for name, about in LOCAL.items():
        command.add_argument(f"--{name}", type=int, metavar="N", help=f"of --local: {about}")
    command.add_argument(
        "--exact",
        action="store_true",
        help="of --local: greedy answers do not depend on what else is generated at the same time; slower",
    )
    command.add_argument("--model", default="", help="its name on the server (default: the one in each request)")
    add_limit_field(command)
    command.add_argument("--concurrency", type=int, default=8, metavar="N", help="requests in flight (default: 8)")
    command.add_argument("--run-folder", metavar="DIR", help="where the run is kept (default: OUT.run)")
    command.add_argument("--resume", action="store_true", help="continue the run in that folder")
    command.add_argument(
        "--accept-loss",
        action="store_true",
        help="with --resume: continue from the valid part of a damaged ledger, and charge what may have been used",
    )
