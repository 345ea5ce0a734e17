"""The lab: the paper's tables and figures on recorded answers, and how it came out.

pool         recorded answers of one model as arrays, with forecasts that have not seen them
streams      mixes of easy and hard queries, drawn from a pool
replay       what a policy's grants give on recorded answers, in either accounting
compare      policies against each other: paired seeds, bootstrap intervals
experiments  one function per table or figure; `findings` says what held
paper        the paper's own figures, to stand beside ours
results      all rows, and what they were made from
"""
