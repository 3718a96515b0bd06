"""Interruptions wait for blocks that must be whole, and for nothing else."""

import threading

import pytest

from distributed_privrl.core.interrupts import ask, asked, held_back, interrupt, rest, withdraw


def test_an_interruption_waits_for_the_end_of_the_outermost_block() -> None:
    done = []

    def work() -> None:
        with held_back():
            with held_back():
                interrupt()
                done.append("inner")
            done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inner", "outer"]
    with held_back():
        done.append("nothing is left over")


def test_it_is_raised_at_once_where_nothing_holds_it_back() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_it_comes_after_an_error_of_the_block() -> None:
    def work() -> None:
        with held_back():
            interrupt()
            raise ValueError

    with pytest.raises(KeyboardInterrupt) as ended:
        work()
    assert isinstance(ended.value.__context__, ValueError)


def test_blocks_of_other_threads_hold_nothing_back() -> None:
    entered, end = threading.Event(), threading.Event()

    def work() -> None:
        with held_back():
            entered.set()
            end.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(10)
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    end.set()
    thread.join()


def test_what_is_asked_for_waits_until_work_rests() -> None:
    rest()
    ask()
    with held_back():
        rest()
    assert asked()
    with pytest.raises(KeyboardInterrupt):
        rest()
    assert not asked()
    rest()


def test_what_is_withdrawn_is_not_raised() -> None:
    ask()
    withdraw()
    rest()


def test_other_threads_rest_undisturbed() -> None:
    ended = []

    def work() -> None:
        rest()
        ended.append(True)

    ask()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    withdraw()
    assert ended == [True]
