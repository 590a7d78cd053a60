"""What libraries print is hidden, and what Python says is not."""

import logging
import os
import sys

import pytest

from tf_bridge import quiet


def test_what_python_says_meanwhile_is_seen(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with open(2, "w", closefd=False) as stream:  # as Python has it, which pytest has replaced
        monkeypatch.setattr(sys, "stderr", stream)
        handler = logging.StreamHandler()
        monkeypatch.setattr(logging.root, "handlers", [handler])
        with pytest.raises(KeyboardInterrupt), quiet.decoders():
            os.write(2, b"a decoder\n")
            print("Python", file=sys.stderr)
            logging.warning("a log")
            raise KeyboardInterrupt
        assert sys.stderr is stream and handler.stream is stream
        os.write(2, b"later\n")
    assert capfd.readouterr().err == "Python\na log\nlater\n"


def test_a_stream_of_somebody_else_s_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with quiet.decoders():
        print("Python", file=sys.stderr)
    assert capsys.readouterr().err == "Python\n"
