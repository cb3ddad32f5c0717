"""Levers and the journal over HTTP, for other processes: `/sandbox/levers` and `/sandbox/requests`.

    curl -X POST $URL/sandbox/levers -d '{"action":"answer","status":429,"retryAfter":1,"path":"*/binding","count":2}'
    curl -X POST $URL/sandbox/levers -d '{"action":"stall","method":"watch","seconds":30}'
    curl -X POST $URL/sandbox/levers -d '{"action":"expireWindow","resource":"pods"}'
    curl $URL/sandbox/requests

Actions with a matcher (`method`, `path`, `userAgent`, `count`, `seconds`): answer (`status`, `retryAfter`), delay
(`delay`, `handled`), drop (`handled`), stall, slowBody (`bytesPerSecond`). Actions that act at once: closeWatches
(`path`, `userAgent`, `abort`), expireWindow (`resource`), down (`seconds`), up. `GET` lists the rules, `DELETE
/sandbox/levers[/ID]` takes them away.
"""

from __future__ import annotations

from typing import Any, Final

from sandbox.apiserver.errors import Json, bad_request, method_not_allowed, no_such_route
from sandbox.apiserver.integers import integer
from sandbox.apiserver.journal import Journal
from sandbox.apiserver.levers import Action, Answer, Delay, Drop, Levers, SlowBody, Stall

PREFIX: Final = "/sandbox/"


class Control:
    """Answers requests under `/sandbox/`. They are never subject to levers themselves."""

    def __init__(self, levers: Levers, journal: Journal) -> None:
        self._levers = levers
        self._journal = journal

    def handle(self, method: str, path: str, body: Any) -> Json:
        """Returns the answer's body. Raises StatusError."""
        match (method, path.removeprefix(PREFIX).split("/")):
            case ("GET", ["levers"]):
                return {"rules": [rule.describe() for rule in self._levers.rules()]}
            case ("POST", ["levers"]):
                return self._pull(body if isinstance(body, dict) else {})
            case ("DELETE", ["levers"]):
                self._levers.clear()
                return {"rules": []}
            case ("DELETE", ["levers", text]) if (number := integer(text)) is not None:
                self._levers.release(number)
                return {"rules": [rule.describe() for rule in self._levers.rules()]}
            case ("GET", ["requests"]):
                return self._requests()
            case ("DELETE", ["requests"]):
                self._journal.clear()
                return self._requests()
            case (_, ["levers" | "requests", *_]):
                raise method_not_allowed()
        raise no_such_route()

    def _requests(self) -> Json:
        counts = self._journal.requests().items()
        return {
            "counts": [
                {"verb": verb, "resource": resource, "userAgent": agent, "count": count}
                for (verb, resource, agent), count in counts
            ],
            "log": [
                {**entry.request._asdict(), "query": entry.query, "status": entry.status, "at": entry.at}
                for entry in self._journal.log
            ],
        }

    def _pull(self, body: Json) -> Json:
        path, user_agent = str(body.get("path", "*")), str(body.get("userAgent", "*"))
        match body.get("action"):
            case "closeWatches":
                return {
                    "closed": self._levers.close_watches(path, user_agent=user_agent, abort=bool(body.get("abort")))
                }
            case "expireWindow":
                self._levers.expire_window(body.get("resource"))
                return {}
            case "down":
                return self._levers.down(body.get("seconds")).describe()
            case "up":
                self._levers.up()
                return {}
        rule = self._levers.pull(
            _action(body),
            method=str(body.get("method", "*")),
            path=path,
            user_agent=user_agent,
            count=body.get("count"),
            seconds=body.get("seconds"),
        )
        return rule.describe()


def _action(body: Json) -> Action:
    try:
        match body.get("action"):
            case "answer":
                return Answer(int(body["status"]), body.get("retryAfter"))
            case "delay":
                return Delay(float(body["delay"]), handled=bool(body.get("handled")))
            case "drop":
                return Drop(handled=bool(body.get("handled")))
            case "stall":
                return Stall()
            case "slowBody":
                return SlowBody(max(1, int(body["bytesPerSecond"])))
    except (KeyError, TypeError, ValueError) as exc:
        raise bad_request(f"action {body.get('action')!r} lacks or misspells {exc}") from exc
    raise bad_request(f"unknown action {body.get('action')!r}")
