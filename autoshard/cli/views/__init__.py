"""One module per command: the dictionary that ``--json`` prints, as tables for people."""
