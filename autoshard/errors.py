"""The exceptions a caller can meet.

::

    AutoshardError
    ├── InvalidInputError (also ValueError)   a mistake in what the user gave: the rule, the values, what would work
    ├── UnsupportedModelError                 a model whose definition we cannot plan, with the reason
    ├── NoFeasiblePlanError                   nothing fits; names the binding constraint and the smallest relaxation
    └── PlanMismatchError                     a plan used on another model, world size or version

Only the command line catches them; it prints one line and exits with 2. Anything else is our bug (exit 1).
"""


class AutoshardError(Exception):
    """Base of everything that is the caller's to mend."""


class InvalidInputError(AutoshardError, ValueError):
    """A wrong value from the user."""


class UnsupportedModelError(AutoshardError):
    """A model definition that cannot be traced or planned."""


class NoFeasiblePlanError(AutoshardError):
    """No strategy meets memory and service limits."""


class PlanMismatchError(AutoshardError):
    """A plan does not belong to what it is applied to."""
