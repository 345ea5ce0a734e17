"""`shadowprice plan`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict

from shadowprice.cli.common import DONE, EXHAUSTED, bar, forecaster, kept, option, outputs, some, standard_output
from shadowprice.planning import Plan, plan


def command(options: argparse.Namespace) -> int:
    out, errors = outputs(options, "planned")
    talk = sys.stderr if "-" in (out, errors) else sys.stdout
    with ExitStack() as stack:
        source = options.file
        if not os.path.isfile(source):  # a pipe: it is read twice, so it is kept
            source = stack.enter_context(kept(options.file))
        result = plan(
            source,
            options.budget,
            forecaster(options)[0],
            out=standard_output() if out == "-" else out,
            errors=standard_output() if errors == "-" else errors,
            policy=options.policy,
            max_tokens=options.max_tokens,
            options=dict(map(option, options.option)),
            limit_field=options.limit_field,
            label="standard input" if options.file == "-" else options.file,
            progress=bar(options),
        )
    print(json.dumps(asdict(result), indent=2) if options.json else _verdict(result, out, errors), file=talk)
    if result.older_limits and not options.json:
        carry = "carries" if result.older_limits == 1 else "carry"
        print(
            f"note: {some(result.older_limits, 'planned request')} {carry} max_tokens beside max_completion_tokens, "
            "which OpenAI refuses; --limit-field max_tokens writes the older field alone",
            file=sys.stderr,
        )
    return EXHAUSTED if result.abandoned else DONE


def _verdict(result: Plan, out: str, errors: str) -> str:
    rows = [f"{some(result.queries, 'query')}, {result.budget:,} tokens, policy {result.policy}"]
    if result.price is not None and result.utility is not None and result.bound is not None:
        short = (result.bound - result.utility) / result.bound if result.bound else 0.0
        best = "the best possible" if short < 1e-9 else f"within {short:.2g} of the best possible"
        rows.append(
            f"  price      {result.price:.4g} per token, utility {result.utility:.6g} ({result.status}: {best})"
        )
    rows.append(f"  admitted   {some(result.admitted, 'query')}, {result.granted:,} tokens granted -> {out}")
    rows.append(f"  abandoned  {some(result.abandoned, 'query')} -> {errors}")
    worth = f", worth {result.more_utility:.4g} at this price" if result.more_utility is not None else ""
    rows.append(f"  10% more   {result.more_budget:,} tokens{worth}: {result.more_admitted:+,} admitted")
    return "\n".join(rows)
