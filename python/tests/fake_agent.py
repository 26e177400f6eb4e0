"""A scripted socket in place of the node's agent."""

import json
import os
import socket

import pytest

PATIENCE_S = 10.0


class Agent:
    """A scripted agent's listening socket."""

    def __init__(self, path, backlog=8):
        self.path = str(path)
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.server.bind(self.path)
        self.server.listen(backlog)
        self.server.settimeout(PATIENCE_S)
        self.open = []

    def accept(self):
        connection, _ = self.server.accept()
        connection.settimeout(PATIENCE_S)
        self.open.append(connection)
        return Rank(connection)

    def assert_no_connection(self):
        self.server.settimeout(0)
        with pytest.raises(BlockingIOError):
            self.server.accept()
        self.server.settimeout(PATIENCE_S)

    def die(self):
        for connection in self.open:
            connection.shutdown(socket.SHUT_RDWR)
        self.server.close()
        os.unlink(self.path)


class Rank:
    """A connection as seen by the agent."""

    def __init__(self, connection):
        self.connection = connection
        self.file = connection.makefile("rb")

    def receive(self):
        return json.loads(self.file.readline())

    def raw(self, data):
        self.connection.sendall(data)

    def send(self, **fields):
        self.raw(json.dumps(fields).encode() + b"\n")

    def assert_silent(self):
        self.connection.settimeout(0)
        with pytest.raises(BlockingIOError):
            self.connection.recv(1)
        self.connection.settimeout(PATIENCE_S)

    def close(self):
        self.file.close()
        self.connection.close()

    def everything(self):
        """All messages received so far."""
        self.connection.settimeout(0)
        raw = b""
        try:
            while data := self.connection.recv(1 << 20):
                raw += data
        except BlockingIOError:
            pass
        self.connection.settimeout(PATIENCE_S)
        return [json.loads(line) for line in raw.splitlines()]
