"""The data of figures: S-curve, rollouts, lengths in the streams, forecasts, curves, the index, single queries."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from shadowprice.errors import MarketError
from shadowprice.forecast.evaluation import evaluate
from shadowprice.lab.compare import Row
from shadowprice.lab.config import Lab, NotPossible
from shadowprice.lab.pools import TIERS, Mask, Pool, Question, Recorded
from shadowprice.lab.simulations import Outcome, Queries, Setup, outcome_of
from shadowprice.lab.streams import draw
from shadowprice.lab.sweeps import scarce_budget
from shadowprice.market import Quadratic, Surge, Triangular, fit_surge
from shadowprice.market.gittins import indices, schedule

_MOST_DATASETS = 6
_FEWEST_OF_A_DATASET = 20
_ROLLOUTS = 8  # answers to one question, at least, for a figure
_MOST_ROLLOUTS = 6
_POINTS = 300  # queries in a figure of single queries
_INDEX_SHARES = (0.05, 0.3, 0.5, 0.7, 0.95)  # quantiles of the forecast length whose index is shown


def s_curve(lab: Lab) -> list[Row]:
    """Figure 1: percent correct if every answer has the same limit."""
    pool = lab.pool
    limits = np.unique(np.geomspace(max(1, pool.length.min() / 2), pool.cap, lab.few_if_quick(32, 16)).astype(np.int64))
    return [
        {
            "table": "s_curve",
            "model": pool.model,
            "dataset": name,
            "budget": int(limit),
            "budget_times_median": limit / pool.median,
            "solved": 100 * float(np.mean(pool.correct[chosen] & (pool.length[chosen] <= limit))),
            "queries": int(chosen.sum()),
            "source": "ours",
        }
        for name, chosen in _largest_datasets(pool).items()
        for limit in limits
    ]


def _largest_datasets(pool: Pool) -> dict[str, Mask]:
    names = np.array([trace.dataset for trace in pool.first])
    values, counts = np.unique(names, return_counts=True)
    large = [i for i in np.argsort(-counts, kind="stable") if values[i] and counts[i] >= _FEWEST_OF_A_DATASET]
    some = {str(values[i]): names == values[i] for i in large[:_MOST_DATASETS]}
    return {"all": np.ones(len(pool), dtype=bool), **(some if len(values) > 1 else {})}


def rollouts(lab: Lab) -> list[Row]:
    """Figure 2: several answers to one question by length, and the latent utility fitted to the correct ones."""
    several = [(pool, q) for pool in lab.models for q in pool.questions if len(q) >= _ROLLOUTS]
    if not several:
        raise NotPossible(f"no question has {_ROLLOUTS} answers of one model")
    # The shape is clearest with many answers, about half of them correct.
    several.sort(key=lambda each: (-len(each[1]), abs(_share_correct(each[1]) - 0.5)))
    rows: list[Row] = []
    shown = 0
    for pool, question in several:
        try:
            rows += _rollout(pool, question)
        except MarketError:  # too few correct answers to fit a curve to
            continue
        shown += 1
        if shown == _MOST_ROLLOUTS:
            break
    if not rows:
        raise NotPossible("no question has correct answers of three different lengths")
    return rows


def _share_correct(question: Question) -> float:
    return float(np.mean([bool(trace.correct) for trace in question]))


def _rollout(pool: Recorded, question: Question) -> list[Row]:
    length = np.array([max(1, trace.tokens) for trace in question], dtype=float)
    correct = np.array([bool(trace.correct) for trace in question])
    curve = fit_surge(length, correct)
    total, edges = np.histogram(length, bins=20)
    some_correct = np.histogram(length[correct], bins=edges)[0]
    return [
        {
            "table": "rollouts",
            "model": pool.model,
            "id": question[0].id,
            "bin_low": float(low),
            "bin_high": float(high),
            "total": int(answers),
            "correct": int(some),
            "threshold": curve.threshold.item(),
            "alpha": curve.alpha.item(),
            "beta": curve.beta.item(),
        }
        for low, high, answers, some in zip(edges[:-1], edges[1:], total, some_correct, strict=True)
    ]


def stream_lengths(lab: Lab) -> list[Row]:
    """Figure 3: the true lengths in each stream, by tier; the longest 1% are in the last bin."""
    pool = lab.pool
    edges = np.linspace(0, max(20.0, np.quantile(pool.length, 0.99)), 21)
    rows = []
    for stream in lab.streams:
        places = draw(pool, stream, min(lab.queries, len(pool)), 0)
        for tier, name in enumerate(TIERS):
            length = pool.length[places[pool.tier[places] == tier]]
            if not length.size:
                continue
            counts = np.histogram(np.minimum(length, edges[-1]), bins=edges)[0]
            rows += [
                {
                    "table": "stream_lengths",
                    "model": pool.model,
                    "stream": stream,
                    "tier": name,
                    "bin_low": float(low),
                    "bin_high": float(high),
                    "count": int(count),
                    "mean_tokens": float(length.mean()),
                }
                for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
            ]
    return rows


# --- forecasts ---------------------------------------------------------------------------------


def predictor(lab: Lab) -> list[Row]:
    """Figure 4: the accuracy of the forecasts, overall and by dataset, and single forecasts."""
    return _predictor("predictor", lab, lab.pool)


def second_predictor(lab: Lab) -> list[Row]:
    """Figure 10: the same for the second model."""
    if len(lab.pools) < 2:
        raise NotPossible("the traces are of one model")
    return _predictor("second_predictor", lab, lab.pools[1])


def _predictor(table: str, lab: Lab, pool: Pool) -> list[Row]:
    report = evaluate(pool.forecast, pool.under_cap, resamples=lab.few_if_quick(1000, 100))
    groups = {"all": report.overall} | (report.datasets if len(report.datasets) > 1 else {})
    rows: list[Row] = []
    for name, scores in groups.items():
        figures = asdict(scores)
        for measure in ("spearman", "auc"):
            low, high = figures.pop(f"{measure}_range") or (None, None)
            figures |= {f"{measure}_low": low, f"{measure}_high": high}
        coverage = {f"coverage_{share.rstrip('%')}": inside for share, inside in figures.pop("coverage").items()}
        rows.append({"table": table, "model": pool.model, "dataset": name, **figures, **coverage})
    for i in _evenly(len(pool), 4 * _POINTS):
        rows.append(
            {
                "table": table,
                "model": pool.model,
                "id": pool.first[i].id,
                "tier": int(pool.tier[i]),
                "forecast": float(pool.forecast.tokens[i]),
                "length": int(pool.length[i]),
            }
        )
    return rows


def _evenly(n: int, most: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.intp))


def calibration(lab: Lab) -> list[Row]:
    """Forecast against observed: the chance of a correct answer, and the coverage of the length intervals."""
    pool, n = lab.pool, len(lab.pool)
    solve = np.broadcast_to(pool.forecast.solve, n)
    rows = []
    for part in np.array_split(np.argsort(solve, kind="stable"), 10):
        rows.append(_share("solve", 100 * float(solve[part].mean()), float(pool.correct[part].mean()), part.size))
    overall = next(row for row in lab.rows if row["table"] == "predictor")
    rows += [_share("length", share, overall[f"coverage_{share}"], n) for share in (50, 80, 95)]
    return [{"table": "calibration", "model": pool.model, **row} for row in rows]


def _share(kind: str, forecast: float, observed: float, n: int) -> Row:
    """A forecast and an observed share of n queries, in percent, with the Wilson interval."""
    interval = binomtest(round(observed * n), n).proportion_ci(method="wilson")  # truncated lengths count in part
    return {
        "kind": kind,
        "forecast": forecast,
        "observed": 100 * observed,
        "ci_low": 100 * float(interval.low),
        "ci_high": 100 * float(interval.high),
        "queries": n,
    }


# --- curves ------------------------------------------------------------------------------------


def curves(lab: Lab) -> list[Row]:
    """Figure 9: the utility of one query under each of the three curves, at a budget of twice the mean forecast.

    If tokens are scarce, all three are steps at the threshold, and a figure would show nothing.
    """
    pool, alpha = lab.pool, 2.0
    threshold, surplus = float(np.median(pool.forecast.tokens)), float(pool.forecast.tokens.mean())
    high = alpha * surplus / np.e
    tokens = np.unique(np.r_[np.linspace(0, threshold + 4 * surplus, 81), threshold + surplus * np.arange(3)])
    shapes = {
        "clear": Surge(threshold, alpha, 1 / surplus),
        "triangular": Triangular(threshold, surplus, 2 * surplus, high),
        "quadratic": Quadratic(threshold, 2 * surplus, high),
    }
    return [
        {
            "table": "curves",
            "model": pool.model,
            "policy": policy,
            "budget": 2 * surplus,
            "threshold": threshold,
            "tokens": float(at),
            "utility": float(value),
        }
        for policy, curve in shapes.items()
        for at, value in zip(tokens, curve.value(tokens), strict=True)
    ]


def index(lab: Lab) -> list[Row]:
    """The metered index of some queries at every age, the price, and the age at which each query stops.

    From the forecasts before the first token; a run recalibrates them as answers end.
    """
    pool, budget = lab.pool, scarce_budget(lab)
    places = draw(pool, lab.stream, min(lab.queries, len(pool)), 0)
    forecast = pool.forecast.take(places)
    plan = schedule(forecast, pool.cap)
    price = plan.price(budget * len(places))
    by_length = np.argsort(forecast.tokens, kind="stable")
    rows: list[Row] = []
    for number, share in enumerate(_INDEX_SHARES, start=1):
        i = int(by_length[int(share * (len(places) - 1))])
        worth = (plan.query == i) & (plan.index > price)
        stop = int(plan.stop[worth].max(initial=0))
        ages = np.unique(np.r_[max(1, stop), np.geomspace(1, pool.cap, lab.few_if_quick(60, 24)).astype(np.int64)])
        facts = {
            "table": "index",
            "model": pool.model,
            "stream": lab.stream,
            "budget": budget,
            "query": number,
            "id": pool.first[places[i]].id,
            "forecast_tokens": float(forecast.tokens[i]),
            "forecast_solve": float(forecast.solve[i]),
            "price": price,
            "stop": stop,
        }
        curve = indices(forecast.take(np.array([i])), pool.cap, ages)[0]
        rows += [{**facts, "age": int(age), "index": float(at)} for age, at in zip(ages, curve, strict=True)]
    return rows


# --- query by query ----------------------------------------------------------------------------


def allocations(lab: Lab) -> list[Row]:
    """Figure 6: grants against true lengths, at a scarce and an ample budget."""
    pool = lab.pool
    places = draw(pool, lab.stream, min(lab.queries, len(pool)), 0)
    queries = Queries.of(pool, places)
    shown = _evenly(len(queries), _POINTS)
    scarce = lab.budgets[0]
    # The smallest ample budget: a larger one would grant everyone the cap, and show nothing.
    ample = next((b for b in lab.budgets if b > 1.2 * pool.median), lab.budgets[-1])
    rows = []
    for regime, budget in {"scarce": scarce, "ample": ample}.items():
        for policy in lab.accountings("uniform", "proportional", "heuristic", "auction", "clear", "expected"):
            outcome = outcome_of(Setup(policy, "reserved"), queries, budget * len(queries))
            rows += [
                {
                    "table": "allocations",
                    "model": pool.model,
                    "regime": regime,
                    "stream": lab.stream,
                    "budget": budget,
                    "policy": policy,
                    "forecast": float(queries.forecast.tokens[i]),
                    "length": int(queries.length[i]),
                    "grant": int(outcome.granted[i]),
                    "solved": bool(outcome.correct[i]),
                }
                for i in shown
            ]
    return rows


def query_table(lab: Lab) -> tuple[list[Row], Row]:
    """One cell query by query, and its name: CLEAR at a scarce budget, on the stream of the first seed."""
    pool = lab.pool
    policy = "clear" if "clear" in lab.policies else lab.policies[0]
    budget = scarce_budget(lab)
    places = draw(pool, lab.stream, min(lab.queries, len(pool)), 0)
    queries = Queries.of(pool, places)
    outcome = outcome_of(Setup(policy, "reserved"), queries, budget * len(queries))
    rows = [
        {
            "id": pool.first[place].id,
            "dataset": pool.first[place].dataset,
            "tier": TIERS[pool.tier[place]],
            "prompt": " ".join(pool.first[place].prompt.split())[:120],
            "forecast_tokens": float(queries.forecast.tokens[i]),
            "forecast_spread": float(queries.forecast.spread[i]),
            "forecast_solve": float(queries.forecast.solve[i]),
            "price": outcome.price,
            "grant": int(outcome.granted[i]),
            "spent": int(outcome.spent[i]),
            "length": int(queries.length[i]),
            **_why(queries, outcome, i),
        }
        for i, place in enumerate(places)
    ]
    cell = {"policy": policy, "accounting": "reserved", "stream": lab.stream, "budget": budget, "seed": 0}
    return rows, cell


def _why(queries: Queries, outcome: Outcome, i: int) -> Row:
    grant, length, forecast = int(outcome.granted[i]), int(queries.length[i]), float(queries.forecast.tokens[i])
    if outcome.finished[i]:
        verdict = "correct" if outcome.correct[i] else "wrong"
        return {"outcome": verdict, "why": f"{verdict} after {length:,} of {grant:,} tokens"}
    if queries.truncated[i]:
        whole = "did not end within the cap"
    else:
        whole = f"is {length:,} tokens long and {'correct' if queries.correct[i] else 'wrong'}"
    if grant:
        return {"outcome": "truncated", "why": f"truncated at {grant:,} tokens; the whole answer {whole}"}
    return {"outcome": "declined", "why": f"forecast {forecast:,.0f} tokens, not worth the price; the answer {whole}"}
