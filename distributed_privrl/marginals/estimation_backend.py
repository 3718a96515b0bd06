"""The one door to mbi and jax, which estimate models from noisy marginals."""

from types import ModuleType


def backend() -> ModuleType:
    """Return the module ``mbi``, with jax set up for it.

    Both are imported here alone, and when they are needed: that takes seconds, and most commands
    need neither. jax has one configuration a process, so these settings hold for all of its users
    in this process:

    * Float64. In float32, estimates from hundreds of thousands of rows stall.
    * The CPU, unless the environment (``JAX_PLATFORMS``) or the caller chose a platform. Estimates
      are many small programs, and a search for GPUs prints warnings.
    * No persistent compilation cache. The programs are too many and too small to be worth keeping.

    With these settings mbi has nothing to warn about when it is imported.

    jax has no documented way to compute in one thread: it ignores ``OMP_NUM_THREADS``, and in jax
    0.10 ``XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"`` changes
    neither its threads nor the processors that it uses. Measured to work are ``taskset``, and
    ``NPROC=1`` in the environment, from which XLA takes the size of its pool.
    """
    import jax

    if jax.config.jax_platforms is None:
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)
    import mbi

    module: ModuleType = mbi
    return module
