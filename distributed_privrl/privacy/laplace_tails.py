"""How likely Laplace noise makes a comparison with a noisy threshold come out wrong.

What is computed for continuous noise bounds discrete noise of the same scales if the margin is two
steps larger. A discrete Laplace number X of scale b steps is never likelier to reach k than a
continuous one, Y, is to reach k - 1: with p = exp(-1 / b), P(X >= k) = p^k / (1 + p)
<= p^(k - 1) / 2 = P(Y >= k - 1) for k >= 1, and P(X >= k) = 1 - p^(1 - k) / (1 + p)
<= 1 - p^(1 - k) / 2 = P(Y >= k - 1) for k <= 0. So the difference of two such numbers reaches m no
likelier than that of continuous ones reaches m - 2.
"""

import math


def wrong_answer(margin: float, threshold_scale: float, query_scale: float) -> float:
    """Return P(query noise - threshold noise >= margin), exactly, for a margin of at least 0.

    Example:
        >>> wrong_answer(0.0, 1.0, 2.0)
        0.5
    """
    a, b = threshold_scale, query_scale
    if abs(a - b) <= 1e-6 * max(a, b):
        wide = max(a, b)
        return math.exp(-margin / wide) * (0.5 + margin / (4 * wide))
    squares = (b**2 * math.exp(-margin / b), a**2 * math.exp(-margin / a))
    return (squares[0] - squares[1]) / (2 * (b**2 - a**2))
