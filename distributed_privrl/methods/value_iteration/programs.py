"""What builds the program of a run, in the server's process."""

from dataclasses import dataclass

from distributed_privrl.methods.value_iteration.linear import LinearProgram
from distributed_privrl.methods.value_iteration.settings import Settings
from distributed_privrl.methods.value_iteration.tabular import TabularProgram
from distributed_privrl.methods.value_iteration.tabular_settings import TabularSettings

Learner = TabularProgram | LinearProgram


@dataclass(frozen=True, eq=False)
class Programs:
    """Builds the program of a run in the server's process.

    Args:
        settings: public facts.
    """

    settings: Settings

    def __call__(self) -> Learner:
        """Return a fresh program."""
        if isinstance(self.settings, TabularSettings):
            return TabularProgram(self.settings)
        return LinearProgram(self.settings)
