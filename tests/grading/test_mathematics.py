"""Mathematics by math-verify, in processes that may hang and die."""

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shadowprice.errors import MissingExtra
from shadowprice.grading import MathPool, grade

pytest.importorskip("math_verify", reason="the extra [math] is not installed")
TRACES = Path(__file__).parents[3] / "shared" / "traces" / "qwen2.5-14b-instruct.math.jsonl.gz"


@pytest.fixture(scope="module")
def pool():
    pool = MathPool(size=2)
    yield pool
    pool.close()


CORRECT, WRONG, NONE, STUCK = "correct", "wrong", "no_answer", "stuck"
ANSWERS = [
    (r"\boxed{5}", "5", CORRECT),
    (r"\boxed{5}", "6", WRONG),
    (r"First \boxed{4}. Wait, that is wrong: \boxed{5}", "5", CORRECT),
    (r"First \boxed{5}. Wait, that is wrong: \boxed{4}", "5", WRONG),
    (r"either $\boxed{4}$ or $\boxed{5}$", "5", WRONG),
    (r"$x = \boxed{4}$ and $y = $ whatever. So $\boxed{1}$ and $\boxed{2}$", "1,2", CORRECT),
    (r"\boxed{\boxed{5}}", "5", CORRECT),
    (r"\boxed{\frac{\sqrt{2}}{2}}", r"\frac{1}{\sqrt{2}}", CORRECT),
    (r"\boxed{\left\{1, 2\right\}}", r"\{2, 1\}", CORRECT),
    (r"\boxed{0.5}", r"\frac{1}{2}", CORRECT),
    (r"\boxed{1/2}", "0.5", CORRECT),
    (r"\boxed{\dfrac12}", r"\frac{1}{2}", CORRECT),
    (r"\boxed{2\frac{1}{2}}", "2.5", CORRECT),
    (r"\boxed{50\%}", "50", CORRECT),
    (r"\boxed{12 \text{ cm}}", "12", CORRECT),
    (r"\boxed{12\,\mathrm{m/s}}", "12", CORRECT),
    (r"\boxed{\$1,234}", "1234", CORRECT),
    (r"\boxed{15,000 \, \text{kcal m}^{-2} \text{ yr}^{-1}}", "15000", CORRECT),
    (r"\boxed{1\,234\,567}", r"1,\!234,\!567", CORRECT),
    (r"\boxed{1\,234}", r"1234567", WRONG),
    (r"\boxed{12^{\mathrm{th}} \text{ grade}}", "12", CORRECT),
    (r"\boxed{v_{\text{max}}}", r"v_{max}", CORRECT),
    (r"\boxed{\lambda_{\text{red}} \sqrt{3}}", r"\lambda_{\text{red}}/\sqrt{2}", WRONG),
    (r"\boxed{\frac{1}{2} m v_{\text{f}}^2}", r"\frac{1}{2} m v_{\text{i}}^2", WRONG),
    (r"\boxed{\begin{pmatrix} 1\\ 200 \end{pmatrix}}", r"\begin{pmatrix}1\\200\end{pmatrix}", CORRECT),
    (r"\boxed{−5}", "-5", CORRECT),
    (r"\boxed{４２}", "42", CORRECT),
    (r"\boxed{x² + 1}", "x^2+1", CORRECT),
    (r"\boxed{1e-5}", "0.00001", CORRECT),
    (r"\boxed{0.00001}", "1e-5", CORRECT),
    (r"\boxed{4 \times 10^{-24}}", "5e-19", WRONG),
    (r"\boxed{10^{-9}}", "0", WRONG),
    (r"\boxed{(x+1)^2}", "x^2+2x+1", CORRECT),
    (r"\boxed{(1, 2)}", "(2, 1)", WRONG),
    (r"\boxed{[0, 1)}", "[0,1)", CORRECT),
    (r"\boxed{[0, 1]}", "[0,1)", WRONG),
    (r"\boxed{\text{east}}", r"\text{east}", CORRECT),
    (r"\boxed{E_{1}, E_{2}}", "E_{1},E_{2}", CORRECT),
    ("The answer is 7.", "7", CORRECT),
    ("The answer is $7$", "7", CORRECT),
    ("[1, 2, 3]", "[1,2,3]", CORRECT),
    ("1, 2 and 3", "1, 2, 3", CORRECT),
    ("1, 2 and 4", "1, 2, 3", WRONG),
    ("(x+1)^2", "x^2+2x+1", CORRECT),
    ("The interval is [0,1].", "[0, 1]", CORRECT),
    ("The interval is [0,2].", "[0, 1]", NONE),
    (r"\boxed{2\sqrt{3}}", "2√3", CORRECT),
    (r"16\pi", "16π", CORRECT),
    ("1.5", "1 1/2", CORRECT),
    (r"\boxed{45^\circ}", "45°", CORRECT),
    (r"It is \boxed{7", "8", NONE),
    (r"\boxed{}", "7", NONE),
    ("I do not know.", "7", NONE),
    ("", "7", NONE),
    ("\x00\ud800", "7", NONE),
    ("x" * 1_000_000 + r" \boxed{7}", "7", CORRECT),
    (r"\boxed{7}" + " and so on" * 100_000, "7", CORRECT),
    ("so it is " * 120_000 + "$7$", "7", CORRECT),
    (r"\boxed{" + "1+" * 500_000 + "1}", "7", WRONG),
    (r"\boxed{" * 100_000, "7", STUCK),
    ("$" * 1_000_000, "7", STUCK),
    ("{" * 500_000 + "}" * 500_000, "7", STUCK),
    (r"\boxed{9^{9^{9^{9^9}}}}", "7", STUCK),
    (r"\boxed{9^9^9^9^9}", "7", STUCK),
    (r"\boxed{(10^{10^{10}})!}", "7", STUCK),
    (r"\boxed{\sum_{n=1}^{10^{12}} \sin(n^n)}", "7", STUCK),
    (r"\boxed{" + "(" * 3000 + "x" + ")" * 3000 + "}", "7", STUCK),
    (r"\boxed{" + r"\sqrt{" * 900 + "2" + "}" * 900 + "}", "7", STUCK),
    (r"\boxed{(x+y+z+w)^{3000}}", "(x+y)^{2999}", STUCK),
]


@pytest.mark.parametrize(
    ("answer", "gold", "wanted"), ANSWERS, ids=[f"{answer[:40]!r} for {gold!r}" for answer, gold, _ in ANSWERS]
)
def test_adversarial_answers(answer, gold, wanted, pool):
    found = grade("math", answer, gold, seconds=3, pool=pool)
    if wanted == STUCK:  # for whatever reason, it is not correct, and the check ends
        assert found.correct is False
        assert found.reason in ("wrong", "no_answer", "timeout", "error")
    else:
        assert (found.correct, found.reason) == (wanted == CORRECT, wanted), found


def test_a_cut_is_reported(pool):
    assert "cut to the last" in grade("math", "so it is " * 120_000 + "$7$", "7", pool=pool).detail


def test_agreement_with_recorded_labels(pool):
    """On the whole file. The labels are from another grader, which read 5.3e-9 as a product with Euler's number."""
    if not TRACES.exists():
        pytest.skip(f"no recorded traces at {TRACES}")
    with gzip.open(TRACES) as lines:
        traces = [json.loads(line) for line in lines]
    with ThreadPoolExecutor(2) as threads:
        grades = threads.map(
            lambda t: grade("math", t["response"], t["gold"], truncated=t["truncated"], pool=pool), traces
        )
    agreed = sum(found.correct == trace["correct"] for found, trace in zip(grades, traces, strict=True))
    assert agreed / len(traces) >= 0.95


class TestWorkers:
    def test_they_are_reused(self, pool):
        grade("math", r"\boxed{x+1}", "1+x", pool=pool)
        before = {worker._process.pid for worker in pool._idle}
        for n in range(5):
            assert grade("math", rf"\boxed{{{n}+x}}", f"x+{n}", pool=pool).correct
        assert {worker._process.pid for worker in pool._idle} == before

    def test_one_that_hangs_is_replaced(self):
        pool = MathPool(size=1)
        grade("math", r"\boxed{x+1}", "1+x", pool=pool)
        worker = pool._idle[0]._process
        os.kill(worker.pid, signal.SIGSTOP)
        assert grade("math", r"\boxed{x+1}", "1+x", seconds=0.5, pool=pool).reason == "timeout"
        assert worker.returncode == -signal.SIGKILL  # killed and reaped
        assert grade("math", r"\boxed{x+1}", "1+x", pool=pool).correct
        pool.close()

    def test_one_that_died_is_replaced(self):
        pool = MathPool(size=1)
        grade("math", r"\boxed{x+1}", "1+x", pool=pool)
        os.kill(pool._idle[0]._process.pid, signal.SIGKILL)
        assert grade("math", r"\boxed{x+1}", "1+x", pool=pool).correct
        pool.close()

    def test_they_serve_asyncio_threads(self, pool):
        async def many():
            asked = [asyncio.to_thread(grade, "math", rf"\boxed{{x+{n}}}", f"{n}+x", pool=pool) for n in range(20)]
            return await asyncio.gather(*asked)

        assert all(found.correct for found in asyncio.run(many()))

    def test_the_shared_ones_end_with_the_program(self):
        code = (
            "from shadowprice.grading import grade, mathematics\n"
            "assert grade('math', r'\\boxed{x+1}', '1+x').correct\n"
            "print(mathematics._pool._idle[0]._process.pid)"
        )
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
        assert done.stderr == ""
        assert not Path(f"/proc/{int(done.stdout)}").exists()

    def test_without_math_verify_the_extra_is_named(self, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(MissingExtra, match=r"shadowprice\[math\]"):
            grade("math", "1", "1")
