import errno
import json
import os
import signal
import sys
import time
import types
from pathlib import Path

import pytest

from distributed_privrl.cli.running import _warn_of_release
from distributed_privrl.cli.text import resume_line
from distributed_privrl.core.errors import StorageError
from distributed_privrl.core.sensitive import Sensitive
from distributed_privrl.data.store import DatasetStore


def test_no_budget_exits_3_with_a_line_that_sets_it(finished):
    refused = finished.without_budget
    assert refused.exit_code == 3
    assert refused.stdout == ""
    assert refused.stderr.splitlines()[-1] == (
        "error: no budget is set for clinic/stays-v0: set one with `privrl ledger budget"
        " clinic/stays-v0 --epsilon 8 --delta 1e-05 --unit transition`"
    )
    assert finished.with_budget.exit_code == 0


def test_a_run_warns_of_steps_that_do_not_join(monkeypatch, capsys):
    config = types.SimpleNamespace(output=types.SimpleNamespace(datasets=("a/b-v0",)))
    seams = {"inside": 1.0, "at_seams": 1.0, "of_a_step": 1.0}
    info = types.SimpleNamespace(metadata=Sensitive({"seam_error": seams}))
    monkeypatch.setattr(DatasetStore, "info", lambda *_: info)
    _warn_of_release(config, types.SimpleNamespace(released="runs/a/policy.safetensors"))
    assert capsys.readouterr().err == ""
    _warn_of_release(config, types.SimpleNamespace(released="a/b-v0"))
    assert capsys.readouterr().err.startswith("warning: STEPS DO NOT JOIN: ")


def test_run_says_its_plan_first_and_what_it_made_last(finished):
    assert finished.resumed.exit_code == 0, finished.resumed.output
    assert finished.resumed.stderr.startswith("plan: 3 rounds (+1 spare) over 400 units")
    certificate = json.loads((finished.out / "certificate.json").read_text())
    lines = dict(line.split(None, 1) for line in finished.resumed.stdout.splitlines())
    assert lines == {
        "released": "clinic/private-v0",
        "epsilon": f"{certificate['epsilon']:.4f}",
        "delta": "1e-05",
        "unit": "transition",
        "relation": "replace_with_null",
        "certificate": f"{finished.out / 'certificate.json'} (valid)",
        "report": str(finished.out / "report.html"),
        "notes": f"{finished.out / 'private' / 'report.html'} (yours alone: look there before you"
        " release)",
    }
    assert (finished.out / "report.html").is_file()


def test_progress_of_a_real_run_shows_rounds_and_epsilon_alone(finished):
    private = [
        line for line in finished.resumed.stderr.splitlines() if line.startswith("private rounds")
    ]
    assert len(private) == 4
    for done, line in enumerate(private):
        assert line.startswith(f"private rounds {done}/3, epsilon reserved ")
        assert " s" not in line.replace(" reserved", "")


def test_a_second_run_into_the_same_folder_is_refused(finished, monkeypatch):
    from distributed_privrl.experiments import registry

    monkeypatch.setattr(registry, "plan_run", lambda _: None)
    again = finished.workplace.privrl(
        *("run", finished.workplace.config, "--out", finished.out),
        *("-o", "output.dataset=clinic/private-v1"),
    )
    assert again.exit_code == 2
    assert "--resume" in again.stderr


def test_missing_data_is_said_before_anything_starts(workplace):
    result = workplace.privrl("run", workplace.config, "--out", workplace.folder / "run")
    assert result.exit_code == 2
    assert "clinic/stays-v0" in result.stderr
    assert not (workplace.folder / "run").exists()


@pytest.fixture
def stubbed(monkeypatch):
    """Datasets that exist, no plan, and a program that is given instead of the real one."""
    from distributed_privrl.experiments import registry
    from distributed_privrl.experiments import run as module

    monkeypatch.setattr(module, "check_datasets", lambda *_, **__: None)
    monkeypatch.setattr(registry, "plan_run", lambda _: None)

    def use(program):
        monkeypatch.setattr(module, "run", program)

    return use


def kill_and_wait(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
    raise AssertionError("the signal was ignored")


@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_exits_130_with_the_line_that_resumes(
    workplace, stubbed, understands, signal_name, monkeypatch
):
    monkeypatch.chdir(workplace.folder)

    def program(*_, out, **__):
        out.mkdir(parents=True)
        (out / "config.yaml").touch()  # which a run has written before it charges or draws
        os.kill(os.getpid(), getattr(signal, signal_name))
        time.sleep(30)

    stubbed(program)
    before = signal.getsignal(signal.SIGTERM)
    # Whoever starts the tests in the background may have them ignore SIGINT.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as `nohup` has it
    try:
        result = workplace.privrl(
            *("run", workplace.config, "--out", "runs/a b", "-o", "privacy.epsilon=3"),
            *("--ledger", workplace.ledger),
        )
    finally:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGHUP, hangup)
    assert result.exit_code == 130
    line = result.stderr.splitlines()[-1]
    assert line.startswith("interrupted: go on with `privrl run ")
    assert line.endswith("`; it needs no new budget")
    command = line.split("`")[1]
    assert command.endswith(
        f"--out 'runs/a b' -o privacy.epsilon=3 --ledger {workplace.ledger} --resume"
    )
    assert understands(command)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_run_that_has_not_begun_does_not_say_to_resume(workplace, stubbed):
    stubbed(kill_and_wait)
    result = workplace.privrl("run", workplace.config, "--out", workplace.folder / "run")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "interrupted: run the same command again"


@pytest.mark.parametrize(
    "error",
    [
        StorageError("cannot use the ledger: it is away; see that its server runs"),
        OSError(errno.EROFS, "Read-only file system", "runs/a/checkpoint"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_storage_that_fails_a_run_says_how_to_go_on(workplace, stubbed, understands, error):
    def program(*_, out, **__):
        out.mkdir(parents=True)
        (out / "config.yaml").touch()
        raise error

    stubbed(program)
    result = workplace.privrl("run", workplace.config, "--out", workplace.folder / "run")
    assert result.exit_code == 7
    line = result.stderr.splitlines()[-1]
    assert line.endswith("--resume`; it needs no new budget)")
    assert understands(line.split("`")[1])


def test_sigterm_is_an_interrupt_that_closes_the_executor(workplace, stubbed, monkeypatch):
    closed = []

    class FakeExecutor:
        def __init__(self, *, workers, least, cpus_per_worker, gpus_per_worker, **seconds):
            assert (workers, least, cpus_per_worker, gpus_per_worker) == (3, 2, 0.5, 0.0)
            assert seconds == {"recovery_seconds": 600, "wait_seconds": 60}

        def close(self):
            closed.append(True)

    module = types.ModuleType("distributed_privrl.runtime.executor")
    module.RayExecutor = FakeExecutor
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def program(_, executor, **__):
        executor.begin()
        kill_and_wait()

    stubbed(program)
    seconds = {"recovery_seconds": 600, "wait_seconds": 60}
    workplace.write_config(
        runtime={"workers": {"min": 2, "max": 3}, "cpus_per_worker": 0.5, **seconds}
    )
    result = workplace.privrl("run", workplace.config, "--out", "runs/a")
    assert result.exit_code == 130
    assert closed == [True]


@pytest.mark.parametrize(
    ("address", "code", "said"),
    [
        ("ray://127.0.0.1:10001", 4, "cannot be probed for a token: give host:port of its head"),
        ("auto", 4, "cannot be probed for a token: give host:port of its head"),
        ("http://127.0.0.1:8265", 2, "is a dashboard's: give host:port of its head"),
    ],
)
def test_an_address_that_is_not_joined_ends_the_run_in_one_line(
    workplace, stubbed, monkeypatch, address, code, said
):
    stubbed(lambda *_, **__: pytest.fail("the run began"))
    monkeypatch.setenv("RAY_ADDRESS", address)
    result = workplace.privrl(
        *("run", workplace.config, "--out", "runs/a", "-o", "runtime.executor=ray")
    )
    assert result.exit_code == code
    assert said in result.stderr.splitlines()[-1]


def test_a_password_never_shows():
    url = "postgresql://user:secret@host/ledger"
    line = resume_line(Path("a.yaml"), Path("out"), [], url)
    assert "secret" not in line
    assert line == "privrl run a.yaml --out out --ledger LEDGER --resume"
    as_option = "postgresql://host/ledger?user=me&password=secret"
    assert resume_line(Path("a.yaml"), Path("out"), [], as_option) == line


def test_a_run_without_privacy_is_loud(workplace, stubbed):
    from distributed_privrl.experiments.run import RunResult

    directory = types.SimpleNamespace(
        certificate=Path("c.json"), private_report=Path("private/r.html")
    )
    certificate = types.SimpleNamespace(stages=(), status="non_private")
    given = {}

    def program(*_, **options):
        given.update(options)
        trials = [{"trainer": "rllib_iql", "seed": 1, "failed": "RuntimeError: no luck"}]
        return RunResult(
            certificate=certificate, directory=directory, released="d-v0", trials=trials
        )

    stubbed(program)
    result = workplace.privrl(
        "run", workplace.config, "--out", "runs/a", "-o", "privacy.epsilon=null"
    )
    assert result.exit_code == 0, result.output
    assert "*** NOT PRIVATE ***" in result.stderr
    assert "NONE: this run was not private" in result.stdout
    assert "(non_private)" in result.stdout
    assert "private/r.html" in result.stdout  # the other one shows nothing
    assert "no luck" not in result.output  # an error may quote rows that nothing protects
    assert {"rllib_iql", "rllib_discrete_cql"} <= set(given["more_trainers"])


def test_counted_units_are_planned_in_words(workplace, stubbed, monkeypatch):
    from distributed_privrl.experiments import registry

    def plan_run(_):
        raise AssertionError("there is nothing to plan yet")

    monkeypatch.setattr(registry, "plan_run", plan_run)
    stubbed(kill_and_wait)
    result = workplace.privrl(
        "run", workplace.config, "--out", "runs/a", "-o", "data.units={epsilon: 0.1}"
    )
    assert result.stderr.startswith("plan: units (transition) are counted with noise first")


def test_demo_passes_what_it_is_given_and_shows_the_summary(workplace, monkeypatch):
    from distributed_privrl.experiments import demo
    from distributed_privrl.experiments.demo import DemoResult

    given = []

    def run_demo(out, *, method, quick, progress, executor_factory):
        given.append((out, method, quick))
        progress("sampling", 1, 1)
        summary = {"epsilon": "4.9", "report": "r.html"}
        return DemoResult(run=None, summary=summary, next_lines=("export A=b", "privrl doctor"))

    monkeypatch.setattr(demo, "run_demo", run_demo)
    result = workplace.privrl("demo")
    assert result.exit_code == 0, result.output
    assert workplace.privrl("demo", "--method", "pgm", "--quick").exit_code == 0
    assert given == [(Path("runs/demo"), "privorl_ar", False), (Path("runs/demo"), "pgm", True)]
    assert result.stdout == (
        "epsilon  4.9\nreport   r.html\n\nto go on with what it made:\nexport A=b\nprivrl doctor\n"
    )


@pytest.mark.parametrize("verb", ["demo", "audit"])
def test_what_needs_a_new_folder_says_how_to_start_again(workplace, monkeypatch, verb):
    from distributed_privrl.experiments import audit, demo

    out = workplace.folder / "new"
    words = ("demo",) if verb == "demo" else ("audit", workplace.config)

    def stopped_at_once(*_, **__):
        kill_and_wait()

    def stopped_later(*_, **__):
        out.mkdir()
        (out / "canary.json").write_text("")
        kill_and_wait()

    said = []
    for stopped in (stopped_at_once, stopped_later):
        monkeypatch.setattr(demo, "run_demo", stopped)
        monkeypatch.setattr(audit, "audit_configuration", stopped)
        result = workplace.privrl(*words, "--out", out)
        assert result.exit_code == 130
        said.append(result.stderr)
    assert said == [
        "interrupted: run the same command again\n",
        f"interrupted: delete {out} or give another --out, and run the command again\n",
    ]


def test_a_demo_into_a_used_folder_is_refused(workplace):
    result = workplace.privrl("demo", "--out", workplace.folder)
    assert result.exit_code == 2
    assert "not empty" in result.stderr
