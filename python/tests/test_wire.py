"""The protocol of docs/job-socket.md, without a socket."""

import json
from types import ModuleType

import pytest

from farrier import wire
from farrier.wire import ClientState, JobIdentity, LineReader, ReconnectPolicy


def decoded(line):
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return json.loads(line)


def test_hello_has_only_known_fields():
    assert decoded(JobIdentity("4711").hello()) == {"type": "hello", "v": 1, "job": "4711"}
    full = JobIdentity("4711", 3, 16, 8, "GPU-5f2a1c7e")
    assert decoded(full.hello()) == {
        "type": "hello",
        "v": 1,
        "job": "4711",
        "rank": 3,
        "world_size": 16,
        "local_world_size": 8,
        "gpu": "GPU-5f2a1c7e",
    }


def test_hello_names_imported_frameworks():
    torch, odd = ModuleType("torch"), ModuleType("jax")
    torch.__version__ = "2.11.0+cu130"
    odd.__version__ = 7
    found = wire.frameworks({"torch": torch, "jax": odd, "keras": ModuleType("keras"), "numpy": torch})
    assert found == {"torch": "2.11.0+cu130"}
    assert decoded(JobIdentity("4711").hello(found))["frameworks"] == found
    assert "frameworks" not in decoded(JobIdentity("4711").hello({}))


def test_names_are_truncated_and_valid_utf8():
    hello = decoded(JobIdentity("ü" * 300 + "x").hello())
    assert hello["job"] == "ü" * 128
    assert decoded(JobIdentity("a\ud800b\n").hello())["job"] == "a?b\n"


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0, 0),
        ("7", 7),
        (2**32 - 1, 2**32 - 1),
        (2**32, None),
        (-1, None),
        ("-1", None),
        ("", None),
        ("x", None),
        (1.0, None),
        (True, None),
        (None, None),
        ("1" * 5000, None),
        ("٣", None),
    ],
)
def test_unsigned_numbers(value, number):
    assert wire.unsigned(value, 32) == number


def test_step_messages():
    assert decoded(wire.step_end(1200, 1.42, 65536, 2.31)) == {
        "type": "step_end",
        "step": 1200,
        "seconds": 1.42,
        "tokens": 65536,
        "loss": 2.31,
    }
    assert decoded(wire.step_end(2**64 - 1, None, None, None)) == {"type": "step_end", "step": 2**64 - 1}
    assert wire.step_end(2**64, 1.0, 1, 1.0) is None
    assert wire.step_end("soon", 1.0, 1, 1.0) is None


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), object()])
def test_a_non_finite_loss_is_null(loss):
    line = wire.step_end(1, float("nan"), -5, loss)
    assert decoded(line) == {"type": "step_end", "step": 1, "loss": None}
    assert b"NaN" not in line


def test_default_job_name():
    assert wire.job_name({"SLURM_JOB_ID": "99", "RANK": "0"}, "train.py", 5, 4) == "99"
    assert wire.job_name({"RANK": "0"}, "/home/me/train.py", 5, 4) == "train.py-4", "torchrun's ranks are one job"
    assert wire.job_name({}, "train.py", 5, 4) == "train.py-5"
    assert wire.job_name({}, "", 5, 4) == "python-5"


def test_socket_path():
    assert wire.socket_path({}) == "/run/farrier/agent.sock"
    assert wire.socket_path({"FARRIER_SOCKET": "/x"}) == "/x"
    assert wire.socket_path({"FARRIER_SOCKET": ""}) is None


def test_lines_are_assembled_from_chunks():
    lines = LineReader()
    assert lines.feed(b"ab") == []
    assert lines.feed(b"c\nd\n\ne") == [b"abc", b"d", b""]
    assert lines.feed(b"\n") == [b"e"]


def test_overlong_lines_are_skipped_and_not_buffered():
    lines = LineReader()
    for _ in range(100):
        assert lines.feed(b"x" * 60_000) == []
        assert len(lines._partial) <= wire.LINE_BYTES_MAX
    assert lines.feed(b"tail\ngood\n") == [b"good"]
    assert lines.too_long == 1
    assert lines.feed(b"x" * 70_000 + b"\nfine\n") == [b"fine"]
    assert lines.feed(b"x" * wire.LINE_BYTES_MAX + b"\n") == [b"x" * wire.LINE_BYTES_MAX]


def test_connection_attempts_are_ten_seconds_apart():
    reconnect = ReconnectPolicy()
    assert reconnect.due(0.0)
    reconnect.last_attempt_s = 5.0
    assert not reconnect.due(14.9)
    assert reconnect.due(15.0)
    reconnect.refused = True
    assert not reconnect.due(1e9)


def wanted_line(*keys, reason="Xid 95"):
    return json.dumps({"type": "checkpoint_wanted", "findings": keys, "reason": reason}).encode()


def test_a_request_stays_until_a_checkpoint_is_saved():
    state = ClientState()
    assert state.checkpoint_wanted(0.0) is None
    assert "Xid 95" in state.handle_line(wanted_line("17-1")).log_message
    assert state.checkpoint_wanted(0.0) == "Xid 95"
    assert decoded(state.checkpoint_done(1200)) == {"type": "checkpoint_done", "step": 1200}
    assert state.checkpoint_wanted(0.0) is None


def test_known_findings_resend_checkpoint_done():
    state = ClientState()
    state.handle_line(wanted_line("17-1"))
    outcome = state.handle_line(wanted_line("17-1"))
    assert outcome.resend is None, "nothing is saved yet: the request stays"
    assert state.checkpoint_wanted(0.0) == "Xid 95"
    state.checkpoint_done(8)
    outcome = state.handle_line(wanted_line("17-1"))
    assert state.checkpoint_wanted(0.0) is None
    assert decoded(outcome.resend) == {"type": "checkpoint_done", "step": 8}


def test_one_new_finding_makes_a_new_request():
    state = ClientState()
    state.handle_line(wanted_line("17-1"))
    state.checkpoint_done(8)
    outcome = state.handle_line(wanted_line("17-1", "18-2", reason="rows pending"))
    assert outcome.resend is None
    assert state.checkpoint_wanted(0.0) == "rows pending"


def test_a_request_without_findings_counts():
    state = ClientState()
    state.handle_line(b'{"type":"checkpoint_wanted"}')
    assert "no reason" in state.checkpoint_wanted(0.0)
    state.checkpoint_done(None)
    state.handle_line(b'{"type":"checkpoint_wanted","findings":"17-1","reason":"a fault"}')
    assert state.checkpoint_wanted(0.0) == "a fault"


def test_a_failed_checkpoint_is_requested_again_after_a_minute():
    state = ClientState()
    state.handle_line(wanted_line("17-1"))
    line = state.checkpoint_failed("no space left on /ckpt", now_s=100.0)
    assert decoded(line) == {"type": "checkpoint_failed", "message": "no space left on /ckpt"}
    assert state.checkpoint_wanted(159.0) is None
    assert state.checkpoint_wanted(160.0) == "Xid 95"
    state.checkpoint_failed("again", now_s=160.0)
    state.handle_line(wanted_line("19-3", reason="worse"))
    assert state.checkpoint_wanted(161.0) == "worse", "a new fault does not wait"


def test_a_long_message_fits_a_line():
    line = ClientState().checkpoint_failed("\x00" * 100_000, 0.0)
    assert len(line) < wire.LINE_BYTES_MAX


def test_remembered_findings_are_bounded():
    state = ClientState()
    for turn in range(3 * wire.KEYS_MAX):
        state.handle_line(wanted_line(f"{turn}-1"))
    assert len(state._seen_findings) == wire.KEYS_MAX


@pytest.mark.parametrize("code", ["bad_hello", "bad_lines", "long_line", "too_fast", "full", "unheard_of", None])
def test_errors_that_end_the_connection(code):
    state = ClientState()
    outcome = state.handle_line(json.dumps({"type": "error", "code": code, "message": "m"}).encode())
    assert outcome.close
    assert "m" in outcome.log_message
    assert state.reconnect.refused == (code == "bad_hello")


@pytest.mark.parametrize("code", ["bad_line", "starting"])
def test_errors_that_keep_the_connection(code):
    outcome = ClientState().handle_line(json.dumps({"type": "error", "code": code}).encode())
    assert not outcome.close


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"17", b"[]", b"null", b"{", b"[" * 60_000, b"9" * 5000])
def test_invalid_lines_are_counted_and_ignored(raw):
    state = ClientState()
    outcome = state.handle_line(raw)
    assert (outcome.log_message, outcome.close, outcome.resend) == (None, False, None)
    assert state.invalid_lines == 1


def test_unknown_types_and_fields_are_ignored():
    state = ClientState()
    outcome = state.handle_line(b'{"type":"sing","song":1}')
    assert (outcome.log_message, outcome.close, state.invalid_lines) == (None, False, 0)
    state.handle_line(b'{"type":"welcome","v":1,"more":[]}')
    assert state.welcomed


def test_messages_are_logged_once_and_bounded():
    state = ClientState()
    notice = b'{"type":"notice","message":"not on this node"}'
    assert "not on this node" in state.handle_line(notice).log_message
    assert state.handle_line(notice).log_message is None
    messages = [state.handle_line(json.dumps({"type": "notice", "message": n}).encode()).log_message for n in range(1000)]
    assert sum(t is not None for t in messages) == wire.LOGGED_MAX - 1
