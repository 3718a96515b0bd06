"""Mirror descent with momentum, by which models of private-PGM are estimated.

mbi's own mirror descent raises its step by a hundredth at a time, which takes most of a thousand
iterations where the first step is small, and has no momentum: cells of few rows come last. This one
has as low a loss after a tenth to a fifth of the iterations, and half as much is compiled
(``docs/design/0017-descent.md``).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.estimation_backend import backend

EVALUATIONS = 2
"""Of the loss in an iteration; mbi counts each as one of its own iterations."""
_RISE, _SETTLED_RISE, _FALL = 1.5, 1.01, 0.5
"""Factors of the step: until it was too long once, after that, and where it is too long."""
_MEMORY = 3.0
"""Iterations after which momentum is one half."""
_SMALLEST = 1e-12
"""Deviation that a measurement has at least."""
_COMPILED = {"xla_backend_optimization_level": 0}
"""A model is compiled for some hundred iterations, and what runs hardly faster takes twice as long
to compile.
"""


class _State(NamedTuple):
    """Where an estimate stands; all are of jax.

    An iteration has two evaluations, of one program: ahead, where momentum leads, and of what is
    found by the gradient there.

    Args:
        point: potentials that are evaluated next.
        ahead: whether momentum leads there; else the gradient has led there.
        gradient: of the loss in the marginals, ahead.
        marginals: ahead.
        loss_ahead: of these.
        potentials: that were found last, and were better than those before.
        before: those of the iteration before.
        loss: of the potentials.
        step: by which potentials follow the gradient.
        along: iterations since momentum began.
        settled: whether a step was too long once.
    """

    point: Any
    ahead: Any
    gradient: Any
    marginals: Any
    loss_ahead: Any
    potentials: Any
    before: Any
    loss: Any
    step: Any
    along: Any
    settled: Any


@functools.cache
def descent() -> Any:
    """Return the estimator, of mbi's interface; its estimates are potentials.

    Each iteration goes on in the direction of the one before, and then follows the gradient of the
    loss in the marginals. A step that lowers the loss by too little for its length is taken back
    and halved; one that ends above the loss before it ends the momentum, which begins anew.

    References: McKenna, Sheldon and Miklau 2019, algorithm 1; Krichene, Bayen and Bartlett 2015
    (accelerated mirror descent); O'Donoghue and Candès 2015 (restarts).
    """
    mbi = backend()
    import jax
    from jax import numpy as jnp

    class Descent(mbi.estimation.MirrorDescent):  # type: ignore[misc,name-defined]
        """See `descent`."""

        def _init(
            self,
            domain: Any,
            loss_fn: Any,
            known_total: float,
            *,
            warm_start: Any = None,
            constraints: Any = (),
        ) -> _State:
            tables = _expanded(domain, loss_fn.cliques, warm_start)
            start = mbi.CliqueVector(
                domain,
                loss_fn.cliques,
                {one: mbi.Factor(domain.project(one), table) for one, table in tables.items()},
            )
            return _State(
                point=start,
                ahead=np.array(True),
                gradient=start,
                marginals=start,
                loss_ahead=np.array(0.0),
                potentials=start,
                before=start,
                loss=np.array(np.inf),
                step=np.array(2.0 / (loss_fn.lipschitz * known_total)),
                along=np.array(0.0),
                settled=np.array(False),
            )

        def _step(
            self, state: _State, loss_fn: Any, known_total: Any, constraints: Any = ()
        ) -> _State:
            oracle = self._oracle(loss_fn.cliques, state.point.domain, constraints=constraints)
            marginals = oracle(state.point, known_total)
            loss, gradient = jax.value_and_grad(loss_fn)(marginals)

            expected = 0.5 * state.step * state.gradient.dot(state.marginals - marginals)
            short = state.loss_ahead - loss >= expected
            better = short & (loss <= state.loss)
            taken = ~state.ahead & better
            potentials = _chosen(taken, state.point, state.potentials)
            before = _chosen(taken, state.potentials, state.before)
            began_anew = jnp.where(short, 0.0, state.along)
            along = jnp.where(better, state.along + 1, began_anew)
            rise = jnp.where(state.settled, _SETTLED_RISE, _RISE)
            momentum = along / (along + _MEMORY)
            return _State(
                point=_chosen(
                    state.ahead,
                    state.point - state.step * gradient,
                    potentials + momentum * (potentials - before),
                ),
                ahead=~state.ahead,
                gradient=_chosen(state.ahead, gradient, state.gradient),
                marginals=_chosen(state.ahead, marginals, state.marginals),
                loss_ahead=jnp.where(state.ahead, loss, state.loss_ahead),
                potentials=potentials,
                before=before,
                loss=jnp.where(taken, loss, state.loss),
                step=state.step * jnp.where(state.ahead, 1.0, jnp.where(short, rise, _FALL)),
                along=jnp.where(state.ahead, state.along, along),
                settled=state.settled | (~state.ahead & ~short),
            )

        @functools.partial(
            jax.jit,
            static_argnames=["self"],
            donate_argnames=["state"],
            compiler_options=_COMPILED,
        )
        def _multi_step(
            self, state: _State, loss_fn: Any, known_total: Any, constraints: Any = ()
        ) -> _State:
            def step(one: _State, _: None) -> tuple[_State, None]:
                return self._step(one, loss_fn, known_total, constraints), None

            last: _State
            last, _ = jax.lax.scan(step, state, None, length=mbi.estimation.CALLBACK_EVERY)
            return last

        def _finalize(self, state: _State, known_total: float, constraints: Any = ()) -> Any:
            return state.potentials

    def _chosen(first: Any, one: Any, other: Any) -> Any:
        return jax.tree.map(lambda some, others: jnp.where(first, some, others), one, other)

    return Descent()


@dataclass(frozen=True)
class _SquaredMisses:
    """Half the squared misses of measurements, in deviations.

    Args:
        cliques: of each.
    """

    cliques: tuple[Any, ...]

    def __call__(self, marginals: Any, measured: Any) -> Any:
        from jax import numpy as jnp

        loss = 0.0
        for clique, (query, noisy, deviation) in zip(self.cliques, measured, strict=True):
            found = query(marginals.project(clique))
            misses = (found - jnp.asarray(noisy)) / jnp.maximum(deviation, _SMALLEST)
            loss += 0.5 * jnp.vdot(misses, misses)
        return loss


def squared_misses(domain: Any, measurements: Sequence[Any]) -> Any:
    """Return the loss of measurements whose queries are pytrees, of mbi's interface.

    Of mbi's own loss each query is a part of the program: an estimate from other weights is
    compiled anew, for seconds. Here numbers are arguments of a program that measurements of the
    same cliques, sizes and kinds of queries share.

    Args:
        domain: of mbi.
        measurements: of mbi.
    """
    mbi = backend()
    cliques = tuple(one.clique for one in measurements)
    return mbi.marginal_loss.MarginalLossFn(
        mbi.clique_utils.maximal_subset(cliques),
        _SquaredMisses(cliques),
        tuple((one.query, one.noisy_measurement, one.stddev) for one in measurements),
        mbi.marginal_loss.calculate_l2_lipschitz_from_metadata(domain, measurements),
    )


def _expanded(domain: Any, cliques: Any, start: Any) -> dict[Any, NDArray[np.float64]]:
    """Return potentials as potentials of cliques that hold theirs, without compiling anything.

    Args:
        domain: of mbi.
        cliques: that hold all of the start's.
        start: potentials, of mbi.
    """
    found = {one: np.zeros([domain[name] for name in one]) for one in cliques}
    for clique in start.cliques:
        home = next(one for one in cliques if set(clique) <= set(one))
        values = np.asarray(start[clique].values)
        there = [name for name in home if name in clique]
        values = values.transpose([clique.index(name) for name in there])
        found[home] += values.reshape([domain[name] if name in clique else 1 for name in home])
    return found
