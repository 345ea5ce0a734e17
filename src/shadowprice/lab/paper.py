"""The paper's own numbers, as printed, to be shown beside ours. They were typed in; nothing here is computed.

Its models and pools differ from ours: Qwen2.5-Math-7B-Instruct (cap 4,096) and Qwen3-30B-A3B-Instruct (cap 16,384) on
MATH-500, OlympiadBench, AMC-23, AIME 24 and 25 and Minerva; Qwen2.5-Coder-7B for code.
"""

from __future__ import annotations

from collections.abc import Mapping

from shadowprice.lab.compare import Row

SMALL, LARGE, CODER = "Qwen2.5-Math-7B-Instruct", "Qwen3-30B-A3B-Instruct", "Qwen2.5-Coder-7B"
_STREAMS = ("balanced", "mostly-easy", "mostly-hard", "u-shaped")

_MAIN_BUDGETS = (256, 512, 1024, 2048)
_MAIN = {  # table 1: streams in order, budgets within
    "uniform": (3.0, 12.4, 17.4, 21.6, 9.0, 33.8, 45.6, 49.0, 1.0, 5.0, 6.8, 11.4, 4.4, 18.4, 25.4, 27.2),
    "proportional": (0.6, 4.6, 18.8, 22.8, 1.8, 17.6, 46.0, 49.0, 0.0, 1.6, 8.2, 12.8, 0.8, 9.0, 26.4, 27.6),
    "tale": (3.8, 6.8, 16.0, 22.2, 7.2, 10.8, 22.4, 39.8, 4.2, 5.8, 9.2, 12.0, 7.2, 10.4, 24.6, 29.0),
    "heuristic": (11.0, 17.0, 18.8, 22.8, 31.6, 37.8, 46.0, 49.0, 4.0, 7.2, 8.2, 12.8, 17.8, 20.6, 26.4, 27.6),
    "auction": (14.2, 15.6, 18.8, 22.8, 32.8, 39.2, 46.0, 49.0, 6.0, 6.6, 8.2, 12.8, 18.4, 22.2, 26.4, 27.6),
    "clear": (14.6, 16.4, 18.8, 22.8, 33.0, 40.4, 47.6, 49.0, 6.2, 6.8, 8.2, 12.8, 18.6, 23.2, 26.8, 27.6),
    "oracle": (19.0, 21.6, 23.6, 26.0, 42.2, 48.4, 49.8, 49.8, 9.6, 11.4, 12.8, 16.6, 26.4, 27.6, 30.2, 32.8),
}
_SECOND_BUDGETS = (1024, 4096)
_SECOND = {  # table 4
    "uniform": (16.4, 26.4, 46.6, 54.4, 6.4, 14.2, 26.6, 30.0),
    "proportional": (8.0, 28.0, 32.4, 55.6, 1.8, 15.2, 13.4, 31.6),
    "heuristic": (18.4, 28.0, 37.2, 55.6, 9.8, 15.2, 23.4, 31.6),
    "auction": (16.2, 24.8, 41.0, 54.2, 7.0, 13.0, 24.4, 29.6),
    "clear": (18.8, 26.8, 47.4, 54.6, 8.6, 14.8, 27.2, 30.6),
    "oracle": (28.8, 38.0, 55.4, 57.8, 17.4, 27.8, 33.2, 38.0),
}
_CODE = {  # table 2: best of 4, each attempt up to 1,024 tokens
    "uniform": {"HumanEval+": 36.8, "MBPP+": 39.4, "BigCodeBench": 16.2},
    "clear": {"HumanEval+": 43.1, "MBPP+": 45.9, "BigCodeBench": 19.8},
}
_VARIANTS = {  # table 3, mean budget 256
    "uniform": {"balanced": 5.4, "mostly-hard": 2.2, "u-shaped": 8.2},
    "clear": {"balanced": 19.4, "mostly-hard": 13.4, "u-shaped": 23.8},
    "triangular": {"balanced": 18.8, "mostly-hard": 13.0, "u-shaped": 21.6},
    "quadratic": {"balanced": 19.4, "mostly-hard": 13.4, "u-shaped": 23.6},
}
# Tables 6 and 7: questions, correct, mean length, tier.
_DATASETS: dict[str, dict[str, tuple[int, int, float, str]]] = {
    SMALL: {
        "GSM8K (train)": (1319, 1025, 77.71, "easy"),
        "MATH (train)": (12500, 9477, 658, "moderate"),
        "MATH 500": (500, 354, 1074, "moderate"),
        "OlympiadBench": (675, 88, 1059, "hard"),
        "AMC-23": (40, 19, 1490, "hard"),
        "AIME 2024": (30, 8, 1369, "very hard"),
        "AIME 2025": (30, 2, 1886, "very hard"),
        "Minerva": (272, 35, 2274, "very hard"),
    },
    LARGE: {
        "GSM8K (train)": (1055, 935, 1254, "easy"),
        "MATH (train)": (12500, 8246, 3763, "moderate"),
        "MATH 500": (500, 288, 9887, "moderate"),
        "OlympiadBench": (675, 179, 9450, "hard"),
        "AMC-23": (40, 14, 13958, "hard"),
        "AIME 2024": (30, 3, 14428, "very hard"),
        "AIME 2025": (30, 14, 14425, "very hard"),
        "Minerva": (272, 37, 10771, "very hard"),
    },
}


def main() -> list[Row]:
    return _grid("main", SMALL, _MAIN_BUDGETS, _MAIN)


def second_model() -> list[Row]:
    return _grid("second_model", LARGE, _SECOND_BUDGETS, _SECOND)


def variants() -> list[Row]:
    return [
        _row("variants", SMALL, stream, 256, policy, correct)
        for policy, by_stream in _VARIANTS.items()
        for stream, correct in by_stream.items()
    ]


def code_best_of_k() -> list[Row]:
    return [
        {**_row("code_best_of_k", CODER, dataset, 4096, policy, correct), "k": 4, "attempt_cap": 1024}
        for policy, by_dataset in _CODE.items()
        for dataset, correct in by_dataset.items()
    ]


def datasets() -> list[Row]:
    return [
        {
            "table": "datasets",
            "model": model,
            "dataset": name,
            "questions": total,
            "correct": correct,
            "solved": 100 * correct / total,
            "mean_tokens": mean,
            "tier": tier,
            "source": "paper",
        }
        for model, rows in _DATASETS.items()
        for name, (total, correct, mean, tier) in rows.items()
    ]


def _grid(table: str, model: str, budgets: tuple[int, ...], numbers: Mapping[str, tuple[float, ...]]) -> list[Row]:
    cells = [(stream, budget) for stream in _STREAMS for budget in budgets]
    return [
        _row(table, model, stream, budget, policy, correct)
        for policy, values in numbers.items()
        for (stream, budget), correct in zip(cells, values, strict=True)
    ]


def _row(table: str, model: str, stream: str, budget: int, policy: str, correct: float) -> Row:
    return {
        "table": table,
        "model": model,
        "stream": stream,
        "budget": budget,
        "policy": policy,
        "accounting": "reserved",
        "solved": correct,
        "source": "paper",
    }
