"""Serving engines: command and config for each. Read `pattern` (how every engine shards), then one of the engines.

Flags are checked against the lists in ``flags.json``, which say where and for which version they were read. None of
the engines runs here.
"""
