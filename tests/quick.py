"""Waits that a test can afford."""

from shadowprice.engine.executor import Tolerance

QUICK = Tolerance(patience=0.05, pause=0.001)
