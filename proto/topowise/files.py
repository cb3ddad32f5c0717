"""Files that others can replace: by a FIFO that nobody writes, a device without an end, or something enormous.

Opening a FIFO waits for a writer and /dev/zero never ends, so what is read from the host goes through here: it is not
waited for, must be a regular file, and has a size. So does what a
configuration names, and a configuration itself: they lie in folders that others may write.
"""

from __future__ import annotations

import errno
import os
import ssl
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 1 << 20
"""More than any configuration, token or bundle of certificates has."""

_CHUNK: Final = 1 << 16


def open_regular(path: str | os.PathLike[str], most: int) -> tuple[int, os.stat_result]:
    """A descriptor to read from, and the file's status. Raises OSError, also for what is no file, or a larger one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, expected up to {most}", os.fspath(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def read_regular(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """All of a file. Raises OSError, also for one that turns out to have more than `most` bytes."""
    descriptor, _ = open_regular(path, most)
    try:
        content = os.read(descriptor, _CHUNK)
        # A short read may be a page boundary; only the empty one is the end, and what the kernel's files say is their
        # size is none.
        while part := os.read(descriptor, _CHUNK):
            content += part
            if len(content) > most:
                break
        if len(content) > most:
            raise OSError(errno.EFBIG, f"it has more than {most} bytes", os.fspath(path))
        return content
    finally:
        os.close(descriptor)


@contextmanager
def regular(path: str | os.PathLike[str], most: int = MOST_BYTES) -> Iterator[str]:
    """A name by which a library that takes names only reads the file that was looked at, whatever is put into its place
    meanwhile. Raises OSError."""
    descriptor, _ = open_regular(path, most)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def trusting(path: str | os.PathLike[str]) -> ssl.SSLContext:
    """For clients: a context that trusts a bundle of CA certificates only. Raises OSError or ssl.SSLError."""
    with regular(path) as name:
        return as_go(ssl.create_default_context(cafile=name))


def as_go(context: ssl.SSLContext) -> ssl.SSLContext:
    """The context itself, from now on content with the certificates that components of Kubernetes are content with.

    What is in a bundle is trusted, intermediate CAs too, and a CA needs neither key identifiers nor key usage: those
    of EKS and MicroK8s had none for years, and from 3.13 on Python would refuse them.
    """
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def load_chain(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Gives a context its own certificate; without a file for the key it is in the same one. Raises OSError or
    ssl.SSLError."""
    with ExitStack() as stack:
        context.load_cert_chain(*[stack.enter_context(regular(path)) for path in (certificate, key) if path])


def stamps(*paths: str | os.PathLike[str]) -> tuple[tuple[int, int], ...]:
    """Returns what differs as soon as one of the files was replaced or written."""
    seen = []
    for path in paths:
        try:
            status = Path(path).stat()
            # Not when it was written, which says nothing of a chown, and which tools set as they like.
            seen.append((status.st_ctime_ns, status.st_ino))
        except OSError:
            seen.append((0, 0))
    return tuple(seen)
