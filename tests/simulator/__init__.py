"""Whole lives of a run, from one seed, in memory: a virtual clock, a virtual disk and a virtual server.

clock     an event loop whose time is virtual and whose order is the seed's
disk      what survives a kill and what survives a power cut, and writes that fail
server    answers, outages, cut streams and nonsense, with a true count of what was generated
story     what a seed decides: the requests, the settings, the faults
process   counts its steps, one of which may be its last
audit     the invariants, checked after every event
life      one life: start, faults, crashes, restarts, until the end
mutants   deliberately broken variants of the executor and the ledger, which the audit must catch

`make simulate SEEDS=10000`, or `python -m tests.simulator --first 7 --seeds 1` to replay a seed.
"""
