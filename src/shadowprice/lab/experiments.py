"""All experiments: one function per table or figure, from a `Lab` to rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from shadowprice.lab import claims, figure_data, sweeps, tables
from shadowprice.lab.compare import Row
from shadowprice.lab.config import Lab, NotPossible

Tell: TypeAlias = Callable[[int, int, str], None]  # experiments done, of how many, and which comes now


@dataclass(frozen=True)
class Experiment:
    title: str
    caption: str
    function: Callable[[Lab], list[Row]]
    paper: str = ""  # what it is there


# In the order in which they are done: some read the rows of those before them.
EXPERIMENTS: dict[str, Experiment] = {
    "main": Experiment(
        "Main comparison",
        "Percent solved by stream, budget per query and policy. Metered is compared with metered only.",
        tables.main,
        "table 1",
    ),
    "frontier": Experiment(
        "Solved against tokens spent",
        "Every policy over a range of budgets, with what the oracle and the clairvoyant reach.",
        sweeps.frontier,
    ),
    "second_model": Experiment("Second model", "The same comparison on another model.", tables.second_model, "table 4"),
    "code_best_of_k": Experiment(
        "Best of K",
        "Several attempts at each question share one grant, in turn; one that passes stops the rest.",
        tables.code_best_of_k,
        "table 2",
    ),
    "variants": Experiment("Structural variants", "CLEAR with other utility curves.", tables.variants, "table 3"),
    "curves": Experiment(
        "Utility curves", "What tokens are worth to one query, by each of the curves.", figure_data.curves, "figure 9"
    ),
    "datasets": Experiment(
        "Datasets", "What the pools are made of, under their caps.", tables.datasets, "tables 6 and 7"
    ),
    "s_curve": Experiment(
        "Solved against a limit for all", "Strict, surge, ample: by dataset.", figure_data.s_curve, "figure 1"
    ),
    "rollouts": Experiment(
        "Rollouts and fitted latent utility",
        "Answers to one question by length, and the surge fitted to the right ones.",
        figure_data.rollouts,
        "figure 2",
    ),
    "stream_lengths": Experiment(
        "Lengths of the streams", "True lengths of the first seed's streams.", figure_data.stream_lengths, "figure 3"
    ),
    "predictor": Experiment(
        "Forecasts", "How good they are on questions they have not seen.", figure_data.predictor, "figure 4"
    ),
    "second_predictor": Experiment(
        "Forecasts for the second model", "The same on another model.", figure_data.second_predictor, "figure 10"
    ),
    "calibration": Experiment("Calibration", "Whether chances and intervals can be believed.", figure_data.calibration),
    "phase_transition": Experiment(
        "Phase transition", "Solved and abandoned against the budget.", sweeps.phase_transition, "figure 5"
    ),
    "allocations": Experiment(
        "Allocations", "Grants against true lengths, scarce and ample.", figure_data.allocations, "figure 6"
    ),
    "beta": Experiment("Decay rate", "Fixed values of beta against the adaptive one.", sweeps.beta, "figure 7"),
    "alpha": Experiment("Initial velocity", "Alpha scales the price and moves no grant.", sweeps.alpha, "figure 8"),
    "noise": Experiment("Noise", "Log-normal noise on the forecasts, many draws.", sweeps.noise, "figure 11"),
    "index": Experiment(
        "The metered index", "Chance of a right answer per token, at every age, and the price.", figure_data.index
    ),
    "waterfall": Experiment(
        "Where the budget went", "From the budget to the tokens that bought right answers.", sweeps.waterfall
    ),
    "findings": Experiment(
        "What held and what did not", "The paper's claims, one by one, on these traces.", claims.claims
    ),
}


def run_experiments(lab: Lab, tell: Tell = lambda done, of, name: None) -> tuple[list[Row], dict[str, str]]:
    """All rows, and the tables these traces do not allow, each with the reason."""
    left_out: dict[str, str] = {}
    for done, (name, experiment) in enumerate(EXPERIMENTS.items()):
        tell(done, len(EXPERIMENTS), name)
        try:
            lab.found.extend(experiment.function(lab))
        except NotPossible as error:
            left_out[name] = str(error)
    return list(lab.found), left_out
