"""Maps a version string to a kubelet: its behaviour, and the certainty of that.

`status.nodeInfo.kubeletVersion` is a Git tag with a distribution's suffix: "v1.33.5+k3s1", "v1.29.14-eks-3abbec1",
"v1.31.6+7cf4c05". OpenShift's builds have an abbreviated commit as suffix, and changes of their own; all other builds
equal their upstream minor. A newer minor than the table decides like the newest row, and an invalid text like the
newest recorded row. Both have a `remark`, so that no answer passes for proven.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal

import msgspec

from topowise import feature_gates
from topowise.feature_gates import Life
from topowise.kubeletconfig import is_openshift
from topowise_scheduler.kubelet import behaviour
from topowise_scheduler.kubelet.behaviour import DISTRIBUTIONS, LATER_OPENSHIFT, ROWS, Behaviour, Distribution, Stage

Certainty = Literal["recorded", "reconstructed", "assumed"]

_VERSION: Final = re.compile(r"v?(\d{1,3})\.(\d{1,4})(?:\.(\d{1,6}))?([-+][0-9A-Za-z.+~_-]+)?", re.ASCII)
_PRE_RELEASE: Final = re.compile(r"-(?:alpha|beta|rc)\.\d+", re.ASCII)
_LONGEST: Final = 256


class KubeletVersion(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A kubelet as the model knows it.

    `minor` is the row in use. `certainty` is "recorded" if code of this minor was run, "reconstructed" if its changes
    were read, "assumed" if the table lacks the version. `remark` explains any certainty below "recorded". `options` are
    the policy options with their stage, including drafts, and `gates` the feature gates with their life.
    """

    name: str
    minor: int
    behaviour: Behaviour
    certainty: Certainty
    remark: str = ""
    options: tuple[tuple[str, Stage], ...] = ()
    gates: tuple[tuple[str, Life], ...] = ()


def behaviour_of(minor: int, distribution: Distribution | None = None) -> Behaviour:
    """Returns the changes of all rows up to a minor, and of a distribution."""
    names = [name for row in ROWS if row.minor <= minor for name in row.changes]
    if distribution is not None:
        names += distribution.changes
    return Behaviour(**dict.fromkeys(names, True))


def is_release(text: str) -> bool:
    """Returns whether the text is a possible release version, known here or not."""
    match = _VERSION.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    return match is not None and int(match[1]) > 0


@lru_cache(maxsize=1024)
def version_of(text: str) -> KubeletVersion:
    """Returns the kubelet of a version string; never raises."""
    match = _VERSION.fullmatch(text.strip()) if is_release(text) else None
    if match is None:
        # Builds outside of a release report v0.0.0.
        remark = f"kubelet version {text[:80]!r} is not a release, expected a version such as v1.33.5"
        return _assumed(NEWEST_RECORDED.minor, remark)
    major, minor, suffix = int(match[1]), int(match[2]), match[4] or ""
    if (major, minor) > (1, _LAST):
        return _assumed(_LAST, f"kubelet {major}.{minor} is newer than the proven versions ({_PROVEN})")
    if minor < _FIRST:
        return _assumed(_FIRST, f"kubelet {major}.{minor} is older than the proven versions ({_PROVEN})")
    if _PRE_RELEASE.match(suffix):
        return _assumed(minor, f"kubelet 1.{minor} is a pre-release ({suffix[1:]})")
    # Any other distribution builds the upstream code.
    if not is_openshift(text.strip()):
        return _known(minor)
    distribution = next((row for row in DISTRIBUTIONS if row.minor == minor), None)
    if distribution is None:
        why = f"kubelet 1.{minor} ({suffix[1:]}) is OpenShift's, whose own changes are unknown"
        return _assumed(minor, why, LATER_OPENSHIFT)
    return _known(minor, distribution)


def _assumed(minor: int, why: str, distribution: Distribution | None = None) -> KubeletVersion:
    version = _known(minor, distribution)
    return msgspec.structs.replace(version, certainty="assumed", remark=f"{why}; predicted as 1.{minor}")


def _known(minor: int, distribution: Distribution | None = None) -> KubeletVersion:
    row = ROWS[minor - _FIRST]
    options = dict(behaviour.stages(minor))
    name = f"1.{minor}"
    if distribution is not None:
        options |= distribution.options
        name += f" ({distribution.name})"
    remark = ""
    if row.proof == "reconstructed":
        unread = ", ".join(row.unread for row in ROWS if row.minor <= minor and row.unread)
        remark = (
            f"kubelet {name} was not run: its changes were read, and applied to the code of {row.source}. "
            f"Merged changes whose code was not available affect {unread}"
        )
    return KubeletVersion(
        name=name,
        minor=minor,
        behaviour=behaviour_of(minor, distribution),
        certainty=row.proof,
        remark=remark,
        options=tuple(options.items()),
        gates=tuple(feature_gates.lives(minor).items()),
    )


_FIRST: Final = ROWS[0].minor
_LAST: Final = ROWS[-1].minor
_RECORDED: Final = max(row.minor for row in ROWS if row.proof == "recorded")
_PROVEN: Final = f"1.{_FIRST} to 1.{_RECORDED}"

NEWEST_RECORDED: Final = _known(_RECORDED)
