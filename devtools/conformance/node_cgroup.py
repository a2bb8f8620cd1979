"""A cgroup that stands for one node, and a process in it that makes sockets.

A socket belongs for good to the cgroup of the process that made it, and to the network namespace that process was in.
So the sockets of the node's processes and of its pods are made by a child that lives in the node's cgroup, and handed
over; those of everybody else are made by ourselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import subprocess
import tempfile
from pathlib import Path

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.cgroup import mount_point
from devtools.conformance.netns import CLONE_NEWNET

_REQUEST = struct.Struct("=iii")
_ANSWER = struct.Struct("=i")
_LET_GO = b"."
_MORE_THAN_ARE_OPEN = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class NodeCgroup:
    """A cgroup2 directory with a socket maker inside; gone after close()."""

    def __init__(self, name: str) -> None:
        self.path = os.path.join(mount_point(), name)
        os.mkdir(self.path)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channel = ours
        self._child = os.fork()
        if self._child == 0:
            try:
                # Whatever this process keeps open stays open: channels of others, their listeners, their namespaces.
                os.closerange(3, theirs.fileno())
                os.closerange(theirs.fileno() + 1, _MORE_THAN_ARE_OPEN)
                Path(self.path, "cgroup.procs").write_text("0")
                _serve(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def socket(self, namespace: int, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """Return a new socket of the given namespace (a descriptor) that belongs to this cgroup."""
        socket.send_fds(self._channel, [_REQUEST.pack(family, kind, protocol)], [namespace])
        answer, descriptors, _, _ = socket.recv_fds(self._channel, _ANSWER.size, 1)
        (error,) = _ANSWER.unpack(answer)
        if error:
            raise OSError(error, os.strerror(error))
        self._channel.recv(len(_LET_GO))
        return socket.socket(fileno=descriptors[0])

    def close(self) -> None:
        """End the maker and remove the cgroup."""
        self._channel.close()
        os.waitpid(self._child, 0)
        os.rmdir(self.path)


def _serve(channel: socket.socket) -> None:
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, _REQUEST.size, 1)
        if len(request) < _REQUEST.size:
            return
        family, kind, protocol = _REQUEST.unpack(request)
        try:
            if _libc.setns(descriptors[0], CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            with socket.socket(family, kind, protocol) as made:
                socket.send_fds(channel, [_ANSWER.pack(0)], [made.fileno()])
            # Whoever closes it then is the last to do so, and the kernel lets go of it at once.
            channel.send(_LET_GO)
        except OSError as error:
            channel.send(_ANSWER.pack(error.errno or 1))
        finally:
            os.close(descriptors[0])


class BpfFs:
    """A BPF file system of our own, on a temporary directory."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="kp-bpffs-")
        try:
            subprocess.run(["mount", "-t", "bpf", "bpf", self.path], check=True)
        except subprocess.CalledProcessError:
            os.rmdir(self.path)
            raise

    def close(self) -> None:
        """Unmount, which drops every pin."""
        subprocess.run(["umount", self.path], check=True)
        with contextlib.suppress(OSError):
            os.rmdir(self.path)
