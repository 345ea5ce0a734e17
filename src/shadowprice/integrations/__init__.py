"""A hard budget inside the tools that run evals.

purse       one budget that samples buy from as they arrive, at a price that makes it last
inspect_ai  a hook of Inspect AI: every call of a model buys from the purse
lm_eval     a model of lm-eval: the requests of all tasks are one batch, cleared at once
"""
