"""The device is the program's or that of the process which measures beside it, one after the other."""

import contextlib
import json
import sys
import threading
import time

import pytest
import torch

from nxcore.choose.process import Answer, Task
from nxcore.choose.turns import ASKS, GO, OVER, PATIENCE_S, Turn, Turns
from nxcore.choose.workers import Workers
from nxcore.measure import race as racing


def test_the_program_leaves_the_device_until_the_race_is_over():
    turns, said, raced = Turns(lambda: True), [], []

    def back(word):
        said.append(word)
        turn.heard(word)

    turn = Turn(lambda word: turns.heard(word, back), 20.0)

    def races():
        with turn.alone():
            time.sleep(0.05)
            raced.append(1)

    thread = threading.Thread(target=races)
    assert turns.give(20.0) == 0.0, "nobody asks"
    thread.start()
    while not turns.asked:
        time.sleep(0.001)
    assert raced == []
    assert 0.05 <= turns.give(20.0) < 20.0
    thread.join()
    assert (raced, said, turns.asked) == ([1], [GO], False)


@pytest.mark.parametrize("taken", [False, True])
def test_of_two_processes_one_races_at_a_time(taken):
    turns, said = Turns(lambda: taken), []
    a, b = (lambda word: said.append("a")), (lambda word: said.append("b"))
    turns.heard(ASKS, a)
    turns.heard(ASKS, b)
    assert turns.give(0.01) == 0.0 or taken
    assert said == ["a"]
    turns.heard(OVER, a)
    assert turns.asked is taken
    turns.give(0.01)
    assert said == ["a", "b"]
    turns.heard(OVER, b)
    assert not turns.asked


def test_a_process_that_waits_no_longer_has_no_turn_later():
    turns, said = Turns(lambda: False), []
    a, b = (lambda word: said.append("a")), (lambda word: said.append("b"))
    for word, who in ((ASKS, a), (ASKS, b), (OVER, b), (OVER, a)):
        turns.heard(word, who)
    assert said == ["a"]
    turns.heard(ASKS, b)
    assert said == ["a", "b"]


def test_a_race_without_an_end_is_waited_for_no_longer():
    said = []
    turns = Turns(lambda: False)
    turns.heard(ASKS, lambda word: None)
    time.sleep(1.1 * PATIENCE_S)
    turns.heard(ASKS, said.append)
    assert said == [GO]


def test_it_waits_no_longer_than_is_said():
    turns = Turns(lambda: True)
    turns.heard(ASKS, lambda word: None)
    assert 0.01 <= turns.give(0.01) < 5.0
    assert not turns.asked


def test_where_calls_give_no_turns_the_answer_comes_at_once():
    turns, said = Turns(lambda: False), []
    turns.heard(ASKS, said.append)
    assert (said, turns.asked) == ([GO], False)


def test_a_program_that_gives_none_is_not_waited_for():
    said = []
    turn = Turn(said.append, 0.01)
    with turn.alone():
        assert said == [ASKS]
        assert turn.waited >= 0.01
    assert said == [ASKS, OVER]


def test_a_race_is_within_a_turn(monkeypatch):
    order = []

    @contextlib.contextmanager
    def alone():
        order.append(ASKS)
        yield
        order.append(OVER)

    monkeypatch.setattr(racing, "ALONE", alone)
    effort = racing.Effort(looks=(1,), warm_s=0.0)
    racing.race({"torch": lambda: order.append("call")}, torch.device("cpu"), effort=effort)
    assert (order[0], order[-1]) == (ASKS, OVER)
    assert set(order[1:-1]) == {"call"}


PROCESS = """
import json, sys
sys.stdin.readline()
print(json.dumps("waits"), flush=True)
word = json.loads(sys.stdin.readline())
print(json.dumps("over") + chr(10) + json.dumps({"why": word}), flush=True)
"""


def test_words_and_answers_share_a_pipe():
    words, answers, done = [], [], threading.Event()
    found = Workers((sys.executable, "-c", PROCESS), {}, 1, idle=0.1)

    def heard(word, answer):
        words.append(word)
        if word == ASKS:
            answer(GO)

    found.heard = heard
    found.add(Task({}, lambda answer: (answers.append(answer), done.set())))
    assert done.wait(60)
    assert (words, answers) == ([ASKS, OVER], [Answer(GO)])
    assert json.dumps(GO) == '"go"'
