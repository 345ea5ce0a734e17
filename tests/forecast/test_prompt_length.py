import numpy as np

from shadowprice import Request
from shadowprice.forecast import PromptLength


def test_the_forecast_of_last_resort_grows_with_the_prompt():
    forecast = PromptLength().predict([Request("a", "x" * 100), Request("b", "x" * 1000), Request("c", "")])
    assert np.round(forecast.tokens).tolist() == [316, 562, 100]
