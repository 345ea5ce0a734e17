"""The account of a run.

manifest  the settings of a run, checked
sqlite    `Ledger`: what is promised, and the methods
journal   the entries, and what they add up to
stores    where they are kept: a file, or memory
mark      the latest entry, in a second file
damage    whether entries are lost or changed, and what is charged then
lock      one writer at a time
view      a run folder, read and never written
"""
