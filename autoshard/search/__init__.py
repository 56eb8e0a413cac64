"""Search: the problem, the exact optimum, and the algorithms measured against it. They do not import each other."""
