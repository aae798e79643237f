"""Programs beside this one."""

import signal
import subprocess

import pytest

from jaxinfer import children


def test_a_ctrl_c_waits_until_a_new_program_says_what_it_does_about_it(monkeypatch: pytest.MonkeyPatch):
    seen = []

    def popen(*command: object, **options: object) -> None:
        seen.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))

    monkeypatch.setattr(subprocess, "Popen", popen)
    _, ours = children.start("a.module")
    ours.close()
    assert seen == [True] and signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
