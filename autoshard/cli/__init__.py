"""The command line: ``autoshard plan | trace | simulate | check | compare | validate | models | calibrate``.

stdout holds the answer: tables, or with ``--json`` one JSON object. stderr holds progress (on a terminal only),
warnings and at most one line that starts with ``autoshard: error:``. Exit codes: 0 fine; 2 a user's mistake or no
feasible plan; 1 our bug, with its traceback.
"""

from autoshard.cli.run import main

__all__ = ["main"]
