"""Learn from recorded answers how long answers will be and how likely they are correct.

python examples/train_a_forecaster.py
"""

import tempfile

import shadowprice as sp
from shadowprice.datasets.shipped import shipped_traces


def main() -> None:
    forecaster = sp.TextForecaster().fit(shipped_traces("train", "smollm2"))
    report = forecaster.evaluate(shipped_traces("eval", "smollm2"))
    print(f"Spearman {report.overall.spearman:.2f} between forecast and true length")
    forecast = forecaster.predict(["What is 17 + 25?", "What is the capital of Italy?"])
    print(forecast.tokens.round(1), forecast.solve.round(2))
    folder = f"{tempfile.mkdtemp()}/mine"
    forecaster.save(folder)
    print(sp.plan(["What is 17 + 25?"], budget=50, forecaster=sp.TextForecaster.load(folder)).granted)


if __name__ == "__main__":
    main()
