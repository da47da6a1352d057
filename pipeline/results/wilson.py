"""Wilson's interval of a share, for independent examples."""

import math

from pipeline.results.bootstrap import Interval

_QUANTILE = 1.959963984540054  # of the normal distribution at 0.975


def wilson_interval(num_successes: int, num_examples: int) -> Interval:
    """Share of successes with its 95 % interval (Wilson 1927, JASA 22).

    The interval is the set of shares p that the observed one is within 1.96 standard errors of, the error
    being that of p; so at 0 or all successes it has a width, where the textbook's interval has none.

    Args:
        num_successes: of independent examples.
        num_examples: at least 1.
    """
    assert 0 <= num_successes <= num_examples and num_examples > 0
    share, shrinkage = num_successes / num_examples, _QUANTILE**2 / num_examples
    centre = (share + shrinkage / 2) / (1 + shrinkage)
    error = math.sqrt(share * (1 - share) / num_examples + shrinkage / (4 * num_examples))
    half_width = _QUANTILE / (1 + shrinkage) * error
    # At these two the ends are 0 and 1, but for rounding.
    low = 0.0 if num_successes == 0 else centre - half_width
    high = 1.0 if num_successes == num_examples else centre + half_width
    return Interval(share, low, high)
