"""Legal strategies without a policy: uniform through the masks, and edits and mutations of known ones.

Every proposal is legal by construction: an edited strategy is *projected*, walking the components in order and moving
each option that the prefix mask forbids to the nearest allowed one. So an edit of one degree pulls the later degrees
along where a rule couples them, and nothing is thrown away. Costs no call.
"""

import numpy as np

from autoshard.search.protocol import IntArray, Problem

MAX_EDITS = 5
"""Components edited at once; more is nearly a uniform draw. [chosen: prototype]"""
EDIT_STOP = 0.45
"""Success probability of the geometric number of edits. [chosen: prototype]"""
DEGREE_SHARE = 0.45
"""Share of the edits that fall on degrees, which are few and matter most. [chosen: prototype]"""
STEP_SHARE = 0.7
"""Share of the edits of a degree that go to the next size instead of to any. [chosen: prototype]"""
COUPLED_SHARE = 0.3
"""Share of the mutations that also move several degrees one size each at once. [chosen]"""
FULL_SHARE = 0.5
"""Share of the coupled moves after which the batch is the largest that fits, or a few sizes less. [chosen]"""
FULL_STOP = 0.5
"""Success probability of the geometric number of sizes less, from 0. [chosen]"""
CROSSOVER_SHARE = 0.3
"""Share of the mutations that take their choices from a second parent. [chosen]"""


def sample(problem: Problem, num: int, rng: np.random.Generator) -> IntArray:
    """[num, C] strategies, each component uniform over what the mask allows."""
    x = np.zeros((num, len(problem.num_options)), dtype=np.int64)
    for position in range(x.shape[1]):
        allowed = problem.mask(x, position)
        x[:, position] = np.where(allowed, rng.random(allowed.shape), -1.0).argmax(1)
    return x


def project(problem: Problem, x: IntArray) -> IntArray:
    """The legal strategies nearest to [n, C] options, component by component; legal ones stay as they are."""
    y = np.clip(x, 0, problem.num_options - 1)
    illegal = np.flatnonzero(~problem.legal(y))
    if len(illegal):
        y[illegal] = _nearest(problem, y[illegal])
    return y


def _nearest(problem: Problem, y: IntArray) -> IntArray:
    """Rows with each option that its mask forbids moved to the nearest allowed one, in order."""
    rows = np.arange(len(y))
    for position in range(problem.num_degree_components):
        allowed = problem.mask(y, position)
        wrong = rows[~allowed[rows, y[:, position]]]
        if len(wrong):
            distance = np.abs(np.arange(allowed.shape[1])[None] - y[wrong, position, None])
            y[wrong, position] = np.where(allowed[wrong], distance, allowed.shape[1]).argmin(1)
    return problem.nearest_choices(y)


def mutate(problem: Problem, pool: IntArray, num: int, rng: np.random.Generator) -> IntArray:
    """[num, C] legal strategies near those of a [k, C] pool, best first; some may equal one of the pool.

    Parents are the better of two draws. A child edits up to five components, may take the choices (all but the
    degrees) of a second parent, and may move several degrees by one size at once, its batch then being filled up.
    """
    num_degrees = problem.num_degree_components
    rows = np.arange(num)
    y = pool[_better_of_two(len(pool), num, rng)]
    crossed = rows[rng.random(num) < CROSSOVER_SHARE]
    y[crossed, num_degrees:] = pool[_better_of_two(len(pool), len(crossed), rng), num_degrees:]
    num_edits = np.minimum(rng.geometric(EDIT_STOP, num), MAX_EDITS)
    num_edits[crossed] -= 1
    return _edit(problem, y, num_edits, rng)


def neighbours(problem: Problem, x: IntArray, rng: np.random.Generator) -> IntArray:
    """[n, C] legal strategies near legal [n, C] ones, row by row: one to five edits, and coupled moves of degrees."""
    return _edit(problem, x.copy(), np.minimum(rng.geometric(EDIT_STOP, len(x)), MAX_EDITS), rng)


def step(problem: Problem, x: IntArray, rng: np.random.Generator) -> IntArray:
    """[n, C] legal strategies one edit away from legal [n, C] ones, row by row.

    One of the components that have more than one option, drawn uniformly, takes another, each as likely; what is not
    legal is made so by projection, which may lead back to the row itself.
    """
    y, rows = x.copy(), np.arange(len(x))
    several = np.flatnonzero(problem.num_options > 1)
    edited = several[rng.integers(0, len(several), len(x))]
    y[rows, edited] = (y[rows, edited] + rng.integers(1, problem.num_options[edited])) % problem.num_options[edited]
    return project(problem, y)


def _edit(problem: Problem, y: IntArray, num_edits: IntArray, rng: np.random.Generator) -> IntArray:
    """Rows of `y` (changed in place) after their numbers of edits and perhaps a coupled move, made legal."""
    (num, num_components), num_degrees = y.shape, problem.num_degree_components
    rows = np.arange(num)
    for edit in range(MAX_EDITS):
        on_degree = (rng.random(num) < DEGREE_SHARE) | (num_degrees == num_components)
        choice = rng.integers(min(num_degrees, num_components - 1), num_components, num)
        component = np.where(on_degree, rng.integers(0, num_degrees, num), choice)
        current, options = y[rows, component], problem.num_options[component]
        step = current + rng.choice([-1, 1], num)
        other = (current + rng.integers(1, np.maximum(options, 2))) % options
        option = np.where(on_degree & (rng.random(num) < STEP_SHARE), step, other)
        active = num_edits > edit
        y[rows[active], component[active]] = option[active]
    coupled = rows[rng.random(num) < COUPLED_SHARE]
    y[coupled, :num_degrees] += rng.integers(-1, 2, (len(coupled), num_degrees))
    batch = num_degrees - 1
    full = coupled[rng.random(len(coupled)) < FULL_SHARE]
    y[full, batch] = problem.num_options[batch] - 1
    y = project(problem, y)
    y[full, batch] -= rng.geometric(FULL_STOP, len(full)) - 1
    return project(problem, y)


def _better_of_two(size: int, num: int, rng: np.random.Generator) -> IntArray:
    """[num] ranks below `size`, each the smaller of two uniform draws."""
    ranks: IntArray = rng.integers(0, size, (2, num)).min(0)
    return ranks
