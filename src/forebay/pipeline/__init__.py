"""The only corridor that knows several rooms. Read `interactive.py`, then `worker.py`.

`interactive.py` is the walk of a call from ③ to its answer, `worker.py` its mirror from lease to
acknowledgement, `keeper.py` what happens when a process dies, `administration.py` what an operator
may do. `resolve.py` ends holds whatever the store does; `rooms.py` lists the contracts they share.
"""
