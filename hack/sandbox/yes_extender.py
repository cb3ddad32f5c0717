"""An extender that lets every node pass and prefers none: what the protocol costs by itself.

`python -m sandbox.yes_extender PORT`. It parses what it is sent and answers in the form kube-scheduler reads, on the
same HTTP server as the service.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvicorn

from topowise_scheduler.serve.extender import wire


async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """ASGI: filter and prioritize."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    names = wire.decode_repeated(body).NodeNames or []
    if scope["path"].endswith("/filter"):
        said = wire.encode(wire.ExtenderFilterResult(NodeNames=names))
    else:
        said = wire.encode([wire.HostPriority(name, 0) for name in names])
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(said)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})


def main() -> None:
    """Serves on loopback until it is ended."""
    config = uvicorn.Config(
        answer,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=120,
    )
    asyncio.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main()
