import errno
import sys
import warnings

import pytest

from distributed_privrl.cli.failures import InterruptedRunError, described
from distributed_privrl.core import errors

DOCUMENTED = {
    errors.ConfigError("wrong"): 2,
    errors.BudgetError("wrong"): 3,
    errors.UnsafeError("wrong"): 4,
    errors.MissingExtraError("mujoco", "envs"): 5,
    errors.VerificationError("wrong"): 6,
    errors.StorageError("wrong"): 7,
    errors.WorkerLostError("wrong"): 1,
    InterruptedRunError("wrong"): 130,
    RuntimeError("wrong"): 1,
    MemoryError(): 1,
    OSError(errno.ENOSPC, "No space left on device"): 7,
    PermissionError(errno.EACCES, "Permission denied", "/data/x"): 7,
}


@pytest.mark.parametrize("error", DOCUMENTED, ids=lambda error: type(error).__name__)
def test_each_error_ends_with_its_code_and_one_line(workplace, monkeypatch, error):
    from distributed_privrl.experiments import registry

    def fail(*_):
        raise error

    monkeypatch.setattr(registry, "load_config", fail)
    result = workplace.privrl("plan", "a.yaml")
    assert result.exit_code == DOCUMENTED[error]
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


def test_messages_with_several_lines_become_one():
    assert described(errors.ConfigError("a\n  b")) == (2, "error: a b")
    code, line = described(ValueError("first\nsecond " + "x" * 1000))
    assert code == 1
    assert line.startswith("unexpected error: ValueError: first second xxx")
    assert line.endswith("...; run again with --debug for the traceback")
    assert len(line) < 500


def test_an_error_from_inside_a_worker_is_shown_unwrapped():
    class WrappedError(Exception):
        cause = KeyError("rows")

    line = described(WrappedError("ray::Worker() traceback"))[1]
    assert line == ("unexpected error: KeyError: 'rows'; run again with --debug for the traceback")


def test_memory_error_names_itself():
    assert described(MemoryError())[1].startswith("unexpected error: MemoryError; ")


def test_an_unknown_key_lists_the_known_ones(workplace):
    workplace.write_config(privacy={"epsilon": 1, "delta": 1e-6, "epsilom": 2})
    result = workplace.privrl("plan", workplace.config)
    assert result.exit_code == 2
    assert "unknown key 'privacy.epsilom' (known: epsilon, delta" in result.stderr


def test_a_delta_that_gives_units_away_is_unsafe(workplace):
    result = workplace.privrl("plan", workplace.config, "-o", "privacy.delta=0.01")
    assert result.exit_code == 4
    assert "not below 1/units" in result.stderr


def test_a_missing_driver_names_its_extra(workplace, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    result = workplace.privrl("ledger", "show", "--ledger", "postgresql://user@nowhere/ledger")
    assert result.exit_code == 5
    assert "distributed_privrl[postgres]" in result.stderr


def test_a_ledger_in_an_impossible_place_is_a_storage_error(workplace):
    file = workplace.folder / "file"
    file.write_text("")
    result = workplace.privrl("ledger", "show", "--ledger", f"sqlite:///{file}/ledger.sqlite")
    assert result.exit_code == 7
    assert str(file) in result.stderr


def test_an_interrupt_anywhere_exits_with_130(workplace, monkeypatch):
    from distributed_privrl.experiments import registry

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(registry, "load_config", interrupt)
    result = workplace.privrl("plan", "a.yaml")
    assert result.exit_code == 130
    assert result.stderr == "interrupted: run the same command again\n"


def test_numbers_that_overflow_say_nothing(workplace, monkeypatch):
    from distributed_privrl.cli import app
    from distributed_privrl.experiments import registry

    original = registry.load_config

    def warn(*args):
        ours = f"{app.PACKAGE}/evaluation/autocorrelation.py"
        warnings.warn_explicit("overflow encountered in subtract", RuntimeWarning, ours, 1)
        return original(*args)

    monkeypatch.setattr(registry, "load_config", warn)
    result = workplace.privrl("plan", workplace.config)
    assert result.exit_code == 0, result.output
    assert "overflow" not in result.stderr
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["not checked"]


def test_own_warnings_are_one_line_and_others_are_silent(workplace, monkeypatch):
    from distributed_privrl.experiments import registry

    original = registry.load_config

    def warn(*args):
        warnings.warn_explicit("loud library", UserWarning, "/elsewhere/module.py", 1)
        return original(*args)

    monkeypatch.setattr(registry, "load_config", warn)
    result = workplace.privrl(
        *("plan", workplace.config),
        *("-o", "privacy.delta=0.001", "-o", "privacy.accountant=rdp"),
    )
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("warning: delta=0.001 is above 1/(10 units)")
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["warning", "not checked"]
