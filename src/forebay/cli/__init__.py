"""The command line: `app.py` is the list of commands, one file per group.

Nothing heavy is imported before a command runs: `forebay --help` is quick because each command
imports what it needs inside its functions.
"""
