"""Which tests are slow, and what tests of several folders share: batch files, a model, recorded generations."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Time says nothing on a busy machine.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Tests run side by side, and their vectors are short: threads that wait for each other only cost time.
# Read when NumPy or Torch is first imported, which is after this.
for _threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")


# A shell that starts the tests in the background has them ignore Ctrl-C, nohup has them ignore hang-ups, and so would
# every command that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Minutes each, on a real model: they go first, so that at the end no process is left alone with one of them.
LONGEST = ("test_live.py", "engine/test_metered_run.py", "test_crash.py")

# What `make fast` leaves out: tests that take a second or more, by file or folder, and by name.
SLOW_FILES = (
    "accounts/test_any_sequence.py",
    "accounts/test_postgres.py",
    "accounts/test_tree.py",
    "backends/test_contract.py",
    "backends/test_llamacpp.py",
    "cli/test_bad_inputs.py",
    "cli/test_demo.py",
    "cli/test_forecast.py",
    "cli/test_guide.py",
    "cli/test_local.py",
    "cli/test_report.py",
    "cli/test_reproduce.py",
    "cli/test_train.py",
    "distributed/test_jobs.py",
    "engine/test_bulk.py",
    "engine/test_contract.py",
    "engine/test_metered_run.py",
    "forecast/encoder",
    "gateway/test_server.py",
    "forecast/test_contract.py",
    "forecast/test_report.py",
    "grading/test_escapes.py",
    "grading/test_levels.py",
    "grading/test_mathematics.py",
    "grading/test_programs.py",
    "integrations/test_inspect_ai.py",
    "integrations/test_lm_eval.py",
    "lab",
    "report",
    "simulator",
    "test_crash.py",
    "test_live.py",
)
SLOW_TESTS = {
    "test_a_budget_for_a_few_of_very_many",
    "test_a_file_of_50_000_requests",
    "test_a_hundred_traces_calibrate_it",
    "test_a_long_thinker_that_knows_its_answer_early_answers_more_questions",
    "test_a_million_curves_of_their_own_shape",
    "test_a_million_requests_fit_into_memory",
    "test_a_million_thresholds_of_one_shape",
    "test_a_record_of_other_code_or_data_is_noticed",
    "test_a_teacher_that_stalls_has_cost_what_it_was_granted",
    "test_an_example_runs",
    "test_an_interrupted_plan_leaves_nothing_behind",
    "test_any_market_is_sound",
    "test_cross_fitted_within_the_pool",
    "test_eight_queries_against_dynamic_programming",
    "test_it_always_agrees_with_the_ledger",
    "test_karush_kuhn_tucker",
    "test_killed_at_any_moment_it_loses_nothing_it_acknowledged",
    "test_out_of_distribution",
    "test_parts_add_up_to_the_whole_answer",
    "test_published_programs_pass_their_own_tests",
    "test_ranges_are_those_of_a_plain_bootstrap_by_question",
    "test_reference_solutions_pass_and_mutilated_ones_fail",
    "test_the_figure",
    "test_the_index_is_the_best_deal_with_it",
    "test_the_limit_is_the_largest_whose_bound_can_be_paid",
    "test_the_readme_and_its_figure_are_what_the_code_says",
    "test_when_it_is_cancelled",
    "test_without_a_network_the_error_is_one_line",
    "test_wrong_programs_fail",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    places = {item: item.path.relative_to(here).as_posix() for item in items}
    items.sort(key=lambda item: places[item] not in LONGEST)
    for item, place in places.items():
        if place.startswith(SLOW_FILES) or getattr(item, "originalname", item.name) in SLOW_TESTS:
            item.add_marker(pytest.mark.slow)


def request_line(name: str, text: str = "What is 2 + 3?", **body) -> dict:
    return {
        "custom_id": name,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [{"role": "user", "content": text}], **body},
    }


@pytest.fixture
def batch(tmp_path: Path):
    """Writes lines (dicts or raw text) to a batch file."""

    def write(lines: list, name: str = "requests.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return path

    return write


@pytest.fixture(scope="session")
def gguf() -> Path:
    """The embedded model, where it can be fetched."""
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed (pip install 'shadowprice[local]')")
    from shadowprice.backends.models import fetch_model
    from shadowprice.errors import InputError

    try:
        return fetch_model()
    except InputError as error:
        pytest.skip(f"the model cannot be fetched here: {error}")


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def read_jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def shared_traces(name: str) -> Path:
    """A file of recorded generations of larger models; the test is skipped where it is not beside the project."""
    path = Path(__file__).parents[2] / "shared" / "traces" / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{name} is not beside the project")
    return path
