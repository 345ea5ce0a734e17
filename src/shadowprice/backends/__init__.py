"""Models that answer, behind one protocol.

base          the protocol, and what all backends share
openai        any OpenAI-compatible server
llamacpp      a model on this machine, in its own process
models        finds and downloads models for it
vllm_offline  vLLM in this process
recorded      recorded answers
"""
