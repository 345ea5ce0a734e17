"""The lab: the paper's tables and figures on recorded answers, and which of its claims held.

From traces to rows, each module using those above it:

pools         recorded answers of one model as arrays, with forecasts that have not seen them
streams       mixes of easy and hard queries, drawn from a pool
simulations   a row of a table is a `Setup`: the configuration of a scheduler, simulated on recorded answers
arrivals      recorded answers as live traffic: a posted price, a static one, first come first served
routes        several models on the same questions: the frontier of correct answers against dollars
votes         several answers of each model to a question, and what their votes gain
compare       policies on the same streams: percent correct, with paired bootstrap intervals
config        `Lab`: what every experiment is given
paper         the paper's own numbers, shown beside ours
tables        one function per table of the paper
sweeps        results along a line: budget, decay rate, velocity, noise
figure_data   the data of the other figures
claims        which claims held, from the rows of the other tables
experiments   all experiments, in the order in which they run
results       all rows and what they were made from: results.json and a CSV file per table
reproduction  from traces to results, in one call
"""
