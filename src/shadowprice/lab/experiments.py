"""All experiments: one function per table or figure, from a `Lab` to rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from shadowprice.lab import claims, figure_data, landing, sweeps, tables
from shadowprice.lab.compare import Row
from shadowprice.lab.config import Lab, NotPossible

Progress: TypeAlias = Callable[[int, int, str], None]  # experiments done, their number, the name of the next


@dataclass(frozen=True)
class Experiment:
    title: str
    caption: str
    function: Callable[[Lab], list[Row]]
    paper: str = ""  # the paper's table or figure


# In the order in which they run: some read the rows of earlier ones.
EXPERIMENTS: dict[str, Experiment] = {
    "main": Experiment(
        "Main comparison",
        "Percent correct by stream, budget per query and policy. Metered is compared with metered only.",
        tables.main,
        "table 1",
    ),
    "frontier": Experiment(
        "Correct answers and tokens spent",
        "Every policy over a range of budgets, with the oracle and the clairvoyant as upper bounds.",
        sweeps.frontier,
    ),
    "second_model": Experiment("Second model", "The same comparison on another model.", tables.second_model, "table 4"),
    "code_best_of_k": Experiment(
        "Best of K",
        "Several attempts at each question share one grant, one after another; a correct one stops the others.",
        tables.code_best_of_k,
        "table 2",
    ),
    "variants": Experiment("Structural variants", "CLEAR with other utility curves.", tables.variants, "table 3"),
    "curves": Experiment(
        "Utility curves", "The utility of tokens for one query, under each curve.", figure_data.curves, "figure 9"
    ),
    "datasets": Experiment(
        "Datasets", "The questions of the pools, with answers limited to the cap.", tables.datasets, "tables 6 and 7"
    ),
    "s_curve": Experiment(
        "Correct answers under one limit for all",
        "By dataset: a limit too strict, the surge, an ample limit.",
        figure_data.s_curve,
        "figure 1",
    ),
    "rollouts": Experiment(
        "Rollouts and fitted latent utility",
        "Answers to one question by length, and the surge curve fitted to the correct ones.",
        figure_data.rollouts,
        "figure 2",
    ),
    "stream_lengths": Experiment(
        "Lengths in the streams",
        "True answer lengths in the streams of the first seed.",
        figure_data.stream_lengths,
        "figure 3",
    ),
    "predictor": Experiment(
        "Forecasts", "How accurate they are on questions they were not trained on.", figure_data.predictor, "figure 4"
    ),
    "second_predictor": Experiment(
        "Forecasts for the second model", "The same on another model.", figure_data.second_predictor, "figure 10"
    ),
    "calibration": Experiment(
        "Calibration", "Forecast chances and intervals against what was observed.", figure_data.calibration
    ),
    "phase_transition": Experiment(
        "Phase transition", "Correct and declined queries against the budget.", sweeps.phase_transition, "figure 5"
    ),
    "allocations": Experiment(
        "Allocations",
        "Grants against true lengths, at a scarce and an ample budget.",
        figure_data.allocations,
        "figure 6",
    ),
    "beta": Experiment("Decay rate", "Fixed values of beta against the adaptive value.", sweeps.beta, "figure 7"),
    "alpha": Experiment("Initial velocity", "Alpha scales the price and changes no grant.", sweeps.alpha, "figure 8"),
    "noise": Experiment(
        "Noise", "Forecasts multiplied by log-normal noise, over many draws.", sweeps.noise, "figure 11"
    ),
    "index": Experiment(
        "The metered index", "Chance of a correct answer per token, at every age, and the price.", figure_data.index
    ),
    "landing_ages": Experiment(
        "Stopped answers", "Every answer stopped at one age: cut, or asked for its final answer.", landing.landing_ages
    ),
    "landing": Experiment(
        "Landing",
        "Policies with and without landings: answers that would be cut are asked for their final answer. The landing "
        "oracle knows the first age from which the final answer stays correct.",
        landing.landing,
    ),
    "waterfall": Experiment(
        "Where the budget went", "From the budget to the tokens of correct answers.", sweeps.waterfall
    ),
    "findings": Experiment(
        "What held and what did not", "The claims of the paper, and ours, on these traces.", claims.claims
    ),
}


def run_experiments(lab: Lab, progress: Progress = lambda done, total, name: None) -> tuple[list[Row], dict[str, str]]:
    """All rows, and the tables that these traces do not allow, each with the reason."""
    left_out: dict[str, str] = {}
    for done, (name, experiment) in enumerate(EXPERIMENTS.items()):
        progress(done, len(EXPERIMENTS), name)
        try:
            lab.rows.extend(experiment.function(lab))
        except NotPossible as error:
            left_out[name] = str(error)
    return list(lab.rows), left_out
