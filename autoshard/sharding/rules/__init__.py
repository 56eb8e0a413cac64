"""One file per kind of fused op; each offers ``options(op, ...)``, the legal choices and what they mean.

Rules do not know each other. To add a kind of op: add a file here and its line in ``RULES``.
"""
