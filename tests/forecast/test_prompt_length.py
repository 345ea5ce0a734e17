import numpy as np

from shadowprice import Query
from shadowprice.forecast import PromptLength


def test_the_forecast_of_last_resort_grows_with_the_prompt():
    forecast = PromptLength().predict([Query("a", "x" * 100), Query("b", "x" * 1000), Query("c", "")])
    assert np.round(forecast.tokens).tolist() == [316, 562, 100]
