"""The only corridor that knows several rooms. Read `interactive.py`, then `worker.py`.

`interactive.py` is the walk of a call from ③ to its answer, `worker.py` its mirror from lease to
acknowledgement; `live.py` is what the walk knows of its call, `run.py` what the worker makes of its
lease. `kept.py` and `background.py` are calls that outlive their clients, `turns.py` is what is
remembered of a call, `summaries.py` what becomes of old turns. `keeper.py` is what happens when a
process dies, `administration.py` what an operator may do. `resolve.py` ends holds whatever the store
does; `report.py` says how calls ended, to metrics and the log; `rooms.py` lists the contracts they
share.
"""
