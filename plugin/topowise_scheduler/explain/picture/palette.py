"""Colours of the SVG.

Pods have the eight fills of Paul Tol's "light" scheme, made for black text on them and told apart by colour-blind
people (https://sronpersonalpages.nl/~pault/, SRON/EPS/TN/09-002); after eight pods a texture is laid over them. No
colour stands alone: every fill of a pod carries its tag, and all else has a texture or an outline of its own.
"""

from __future__ import annotations

from typing import Final

import msgspec

TEXTURES: Final = ("", "rising", "dots", "mesh")
"""Over the colours of the first eight pods, the second eight, and so on."""


class Theme(msgspec.Struct, frozen=True, kw_only=True):
    """A colour scheme. `ink` is the text on the fills of pods."""

    canvas: str
    frame: str
    socket: str
    core: str
    line: str
    text: str
    dim: str
    accent: str
    free: str
    free_line: str
    shared: str
    reserved: str
    hugepages: str
    joint: str
    unknown: str
    bad: str
    bad_line: str
    ink: str
    owners: tuple[str, ...]


LIGHT: Final = Theme(
    canvas="#f4f6f8",
    frame="#ffffff",
    socket="#e9edf1",
    core="#e9edf1",
    line="#d3dae1",
    text="#1c2530",
    dim="#566270",
    accent="#6a3fa0",
    free="#ffffff",
    free_line="#c2cbd5",
    shared="#dfe5eb",
    reserved="#ccd4dc",
    hugepages="#d5dce4",
    joint="#d9cbee",
    unknown="#a9b4bf",
    bad="#fbe1dd",
    bad_line="#c4432b",
    ink="#10161d",
    owners=("#77aadd", "#ee8866", "#eedd88", "#44bb99", "#ffaabb", "#99ddff", "#bbcc33", "#aaaa00"),
)
DARK: Final = Theme(
    canvas="#0f141a",
    frame="#181f27",
    socket="#1f2731",
    core="#27313c",
    line="#313c48",
    text="#e3e9ef",
    dim="#98a5b3",
    accent="#c3a5ec",
    free="#121820",
    free_line="#465362",
    shared="#2d3844",
    reserved="#4a5663",
    hugepages="#3c4855",
    joint="#5c4a7d",
    unknown="#5b6773",
    bad="#4b2420",
    bad_line="#ef8371",
    ink="#10161d",
    owners=("#6592bf", "#cd7558", "#cdbf75", "#3ba184", "#dc92a1", "#84bfdc", "#a1b02c", "#939300"),
)
