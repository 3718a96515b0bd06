"""Drives a server over its rounds: progress, interruption, a server that died."""

from distributed_privrl.core.errors import WorkerLostError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.core.progress import Progress
from distributed_privrl.rounds.plan import Plan
from distributed_privrl.rounds.round_server import RoundProgress

STAGE = "private rounds"
SERVER_RESTARTS = 3


def run_rounds(
    server: WorkerGroup, plan: Plan, *, progress: Progress, stage: str = STAGE
) -> RoundProgress:
    """Run the rounds that are left and return where the server ended.

    A server that dies is rebuilt from its last checkpoint by the executor; the rounds of its open
    block stay spent. On an interruption a checkpoint is written first, so that a resume loses none
    of the rounds that were drawn.

    Args:
        server: a group with one `RoundServer`.
        plan: what the rounds cost, for the note beside the bar.
        stage: what the progress bar is called.
        progress: told the round number and the epsilon reserved; nothing that depends on data.

    Raises:
        WorkerLostError: the server died more often than ``SERVER_RESTARTS`` times.
    """
    status: RoundProgress = server.call("progress")[0]
    step = max(1, min(25, plan.block_rounds // 4))
    costs = _ReservedEpsilon(plan)
    restarts = 0
    progress(stage, status.round_index, status.target, costs.note(status.reserved))
    try:
        while not status.finished:
            try:
                status = server.call("advance", {"rounds": step})[0]
            except WorkerLostError:
                restarts += 1
                if restarts > SERVER_RESTARTS:
                    raise
                status = server.call("progress")[0]
            progress(stage, status.round_index, status.target, costs.note(status.reserved))
    except KeyboardInterrupt:
        server.call("suspend")
        raise
    return status


class _ReservedEpsilon:
    """The epsilon reserved so far, computed once a block."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known: dict[int, str] = {}

    def note(self, reserved: int) -> str:
        if self._plan.budget is None:
            return "NOT private"
        if reserved not in self._known:
            self._known[reserved] = f"epsilon reserved {self._plan.epsilon(reserved):.3f}"
        return self._known[reserved]
