"""Reads files that other processes can replace: by a FIFO without a writer, an endless device, or a huge file.

Opening a FIFO waits for a writer, and /dev/zero never ends. So every file of the host is read here: without waiting,
only if it is a regular file, and up to a size. The same holds for configurations and the files that they name: other
users may write to their directories.
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
    """Returns a descriptor and the file's status. Raises OSError, also for other than a regular file of this size."""
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
    """Returns the content of a file. Raises OSError, also for a file that has more than `most` bytes."""
    descriptor, _ = open_regular(path, most)
    try:
        content = os.read(descriptor, _CHUNK)
        # A short read may be a page boundary; only an empty read is the end. The st_size of the kernel's files is not
        # their length.
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
def regular(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields a path to the checked file for a library that accepts paths only, even if the file is replaced meanwhile.
    Raises OSError."""
    descriptor, _ = open_regular(path, MOST_BYTES)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def trusting(path: str | os.PathLike[str]) -> ssl.SSLContext:
    """Returns a client context that trusts only this bundle of CA certificates. Raises OSError or ssl.SSLError."""
    with regular(path) as name:
        return as_go(ssl.create_default_context(cafile=name))


def as_go(context: ssl.SSLContext) -> ssl.SSLContext:
    """Makes the context accept the certificates that Go, and so Kubernetes components, accept. Returns the same
    context. Every certificate in a bundle is trusted, also an intermediate CA, and a CA needs neither key identifiers
    nor key usage: the CAs of EKS and MicroK8s had none for years, and Python from 3.13 on would refuse them."""
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def load_chain(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Loads a context's own certificate; without `key` the same file has the key. Raises OSError or ssl.SSLError."""
    with ExitStack() as stack:
        context.load_cert_chain(*[stack.enter_context(regular(path)) for path in (certificate, key) if path])


def stamps(*paths: str | os.PathLike[str]) -> tuple[tuple[int, int], ...]:
    """Returns values that change as soon as one of the files is replaced or written."""
    stamps_of_files = []
    for path in paths:
        try:
            status = Path(path).stat()
            # Change time (ctime) instead of modification time: chown changes only ctime, and tools can set mtime.
            stamps_of_files.append((status.st_ctime_ns, status.st_ino))
        except OSError:
            stamps_of_files.append((0, 0))
    return tuple(stamps_of_files)
