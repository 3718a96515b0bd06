"""A gate on how many keys there are: whoever can try all of them reads what noise hides."""

from collections.abc import Callable

import numpy as np

from distributed_privrl.privacy.ledger import entry_secrets
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.privacy.sampling import RoundSecret, SlotCoins
from tests.gates.system import System

SPACING = 2.0**-40
"""Of a lattice so fine that two draws are equal by chance nowhere."""


def _noise() -> bytes:
    """Return the first noise of a fresh source."""
    source = SecureNoise()
    return source.add_gaussian(np.zeros(4), standard_deviation=1, granularity=SPACING).tobytes()


def _noise_ahead() -> bytes:
    """Return the first noise of a fresh source that draws ahead."""
    source = SecureNoise(draw_ahead=4)
    try:
        return source.add_gaussian(np.zeros(4), standard_deviation=1, granularity=SPACING).tobytes()
    finally:
        source.close()


def _coins() -> bytes:
    """Return which of 128 slots the coins of a new entry's secret choose."""
    coins = SlotCoins(RoundSecret(entry_secrets.new_secret()))
    return coins.draw(128, 0.5, nonce="first", block=0).tobytes()


DRAWS: dict[str, tuple[Callable[[], bytes], int]] = {
    "noise": (_noise, 2**14),
    "noise that is drawn ahead": (_noise_ahead, 2**10),
    "coins": (_coins, 2**14),
}
"""What hangs on a key alone, and how often it is drawn."""


def gate_many_keys(system: System) -> None:
    """No two of N fresh keys give the same draw.

    Of 2^b keys N(N - 1) / 2^(b + 1) pairs are expected to be the same: a gate of 2^14 draws misses
    keys of 16 random bits with probability exp(-2048), of 23 with exp(-16). Keys that can be
    guessed and never repeat, such as counters, it does not see.
    """
    for what, (draw, count) in DRAWS.items():
        different = len({draw() for _ in range(count)})
        assert different == count, (
            f"{what}: {count} keys gave {different} different draws: they have some"
            f" {np.log2(count) * 2 - 1 - np.log2(count - different):.0f} random bits"
        )
