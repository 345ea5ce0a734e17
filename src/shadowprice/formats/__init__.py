"""Every reader and writer of a file, once.

jsonl       JSON lines: gzipped or not, with the number of the line in every error
batch       OpenAI Batch files; puts a limit into a line without changing any other byte
limits      the fields that limit an answer, by endpoint
inputs      questions or requests of a user, from a file in any usual format
rows        the rows of such files: lines of text, CSV, JSON lines
requests    requests for a run, from any form in Python, and checks on them
asked       questions and correct answers of a run, kept for reports
spreadsheet results as CSV
templates   prompts that a question is put into
landings    how a model is asked for its final answer
probes      final answers that were recorded at some ages
routes      files of routes
flags       what was wrong with answers, in words
fixes       what to do about failures
questions   questions and their gold answers
traces      recorded answers
forecasts   forecasts from any source
results     results, the one place that writes and reads them
declined    the result of a request that the market would not pay for
files       files that appear complete or not at all
"""
