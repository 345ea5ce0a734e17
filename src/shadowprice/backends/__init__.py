"""Models that answer, behind one protocol.

base        the protocol, and what all backends share
openai      any OpenAI-compatible server
llamacpp    a model on this machine, in its own process; `models` are those that can be named
recorded    recorded answers
"""
