"""The account of a run, and the accounts of a gateway.

Of a run:

manifest  the settings of a run, checked
book      what an execution needs of a ledger
sqlite    `Ledger`: its promises and methods
journal   the entries, and what they add up to
stores    where entries are kept: a file, or memory
mark      the latest entry, in a second file
damage    whether entries are lost or changed, and what is charged then
lock      one writer at a time
view      a run folder, read and never written

Of a gateway:

windows   when a budget refills
tree      `Tree`: its promises, and how one process reserves and settles
counters  numbers that survive kill -9
owner     the database of all processes: SQLite, for one machine
postgres  the same for several machines
notes     tenants, prices and the latest requests, for reports
"""
