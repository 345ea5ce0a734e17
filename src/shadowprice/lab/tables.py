"""The paper's tables: main comparison, second model, best of K for code, structural variants, datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from shadowprice.lab import paper
from shadowprice.lab.compare import Drawn, Row, compare, compare_drawn
from shadowprice.lab.config import Lab, NotPossible, budgets_of
from shadowprice.lab.pools import FEWEST, TIERS, Pool, Question, Recorded, make_pool
from shadowprice.lab.simulations import Accounting, Attempts, Queries

ATTEMPTS = 4  # the paper's K
ATTEMPT_CAP = 1024  # tokens of one attempt: the paper's B
_BASELINES = ("uniform", "proportional", "clear", "expected", "oracle", "clairvoyant")


def main(lab: Lab) -> list[Row]:
    """Table 1."""
    return _compare("main", lab, lab.pool, lab.budgets, lab.accountings()) + paper.main()


def second_model(lab: Lab) -> list[Row]:
    """Table 4."""
    if len(lab.pools) < 2:
        raise NotPossible("the traces are of one model")
    pool = lab.pools[1]
    return (
        _compare("second_model", lab, pool, budgets_of(pool.median, ("0.5x", "1x", "2x")), lab.accountings())
        + paper.second_model()
    )


def variants(lab: Lab) -> list[Row]:
    """Table 3. If tokens are scarce, eq. 16 makes every curve a step, so the variants cannot differ."""
    policies: dict[str, list[Accounting]] = {
        name: ["reserved"] for name in ("uniform", "clear", "triangular", "quadratic")
    }
    return _compare("variants", lab, lab.pool, lab.budgets, policies) + paper.variants()


def datasets(lab: Lab) -> list[Row]:
    """Tables 6 and 7."""
    return [row for pool in lab.models for row in _datasets(pool)] + paper.datasets()


def _datasets(pool: Recorded) -> list[Row]:
    names = np.array([trace.dataset or "(unnamed)" for trace in pool.first])
    rows = []
    for name in dict.fromkeys(names.tolist()):
        chosen = names == name
        tiers = np.unique(pool.tier[chosen])
        rows.append(
            {
                "table": "datasets",
                "model": pool.model,
                "dataset": name,
                "questions": int(chosen.sum()),
                "correct": int(pool.correct[chosen].sum()),
                "solved": 100 * float(pool.correct[chosen].mean()),
                "mean_tokens": float(pool.length[chosen].mean()),
                "median_tokens": float(np.median(pool.length[chosen])),
                "truncated": int(pool.truncated[chosen].sum()),
                "tier": TIERS[tiers[0]] if tiers.size == 1 else "by length",
                "cap": pool.cap,
                "source": "ours",
            }
        )
    return rows


def _compare(
    table: str, lab: Lab, pool: Pool, budgets: Sequence[int], policies: Mapping[str, Sequence[Accounting]]
) -> list[Row]:
    return compare(
        table,
        pool,
        streams=lab.streams,
        budgets=budgets,
        policies=policies,
        seeds=lab.seeds,
        queries=lab.queries,
    )


# --- best of K ---------------------------------------------------------------------------------


def code_best_of_k(lab: Lab) -> list[Row]:
    """Table 2. The K attempts of a query share its grant, one after another; a correct one stops the others.

    So a query needs the tokens of its attempts up to the first correct one, each limited to the attempt's own cap.
    The cross-fitted forecasts are for this number. Every stream has each question once; a seed chooses the attempts.
    """
    rows: list[Row] = []
    policies = {
        name: [each for each in accountings if each != "metered"]  # metered accounting has one answer per query
        for name, accountings in lab.accountings(*_BASELINES).items()
    }
    for pool in lab.models:
        several = [question for question in pool.questions if len(question) >= ATTEMPTS]
        if len(several) < FEWEST:
            continue
        drawn = [best_of_k(pool, several, seed) for seed in range(lab.seeds)]
        everyone, median = np.arange(len(several)), float(np.median(drawn[0].length))
        rows += compare_drawn(
            {"table": "code_best_of_k", "model": pool.model, "stream": _one_name(several), "k": ATTEMPTS}
            | {"attempt_cap": min(ATTEMPT_CAP, pool.cap)},
            Drawn([everyone] * lab.seeds, drawn, np.zeros_like(everyone)),
            median,
            budgets=[*budgets_of(median, ("0.25x", "0.5x", "1x", "2x")), ATTEMPTS * ATTEMPT_CAP],
            policies=policies,
        )
    if not rows:
        raise NotPossible(f"no model has {FEWEST} questions with {ATTEMPTS} answers each")
    return rows + paper.code_best_of_k()


def _one_name(questions: Sequence[Question]) -> str:
    return " + ".join(dict.fromkeys(question[0].dataset or "(unnamed)" for question in questions))


def best_of_k(pool: Recorded, questions: Sequence[Question], seed: int) -> Queries:
    """Queries with K attempts each; lengths and forecasts are of the attempts together."""
    random = np.random.default_rng(seed)
    cap = min(ATTEMPT_CAP, pool.cap)
    chosen = [[question[i] for i in random.permutation(len(question))[:ATTEMPTS].tolist()] for question in questions]
    length = np.array([[max(1, min(t.tokens, cap)) for t in attempts] for attempts in chosen])
    ended = np.array([[not t.truncated and t.tokens <= cap for t in attempts] for attempts in chosen])
    attempts = Attempts(length, ended, ended & np.array([[bool(t.correct) for t in each] for each in chosen]), cap)
    correct = np.any(attempts.correct, axis=1).tolist()
    together = [
        [replace(each[0], tokens=int(tokens), truncated=False, correct=any_correct)]
        for each, tokens, any_correct in zip(chosen, attempts.tokens, correct, strict=True)
    ]
    whole = make_pool(Recorded(pool.model, ATTEMPTS * cap, together))
    return replace(Queries.of(whole, np.arange(len(chosen))), attempts=attempts)
