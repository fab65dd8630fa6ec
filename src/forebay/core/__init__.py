"""The vocabulary: the types that rooms exchange, with no I/O and no clock reads.

Every other package may import this one; this one imports nothing of Forebay. A word means here
what DESIGN's vocabulary says: a *call* is what one HTTP request asks for, a *job* is its queued
unit, an *attempt* is the fence of money and streams, a *lease* is a time-bounded right to run.

Not here: behaviour that needs a store, a socket or the time (those are rooms).
"""
