"""The SVG document: well-formed, self-contained, readable in both colour schemes and without colours."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from topowise_scheduler.explain.picture import Picture, svg
from topowise_scheduler.explain.picture.captions import tag
from topowise_scheduler.explain.picture.svg import DARK, LIGHT, Theme

SVG = "{http://www.w3.org/2000/svg}"


def rectangles(document: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [element for element in document.iter(f"{SVG}rect") if element.get("class", "").split()[0] == kind]


def titles(document: ElementTree.Element, kind: str) -> list[str]:
    return [element.findtext(f"{SVG}title", "") for element in rectangles(document, kind)]


def test_the_svg_is_well_formed_and_labelled(picture: Picture) -> None:
    document = ElementTree.fromstring(svg(picture))
    assert document.tag == f"{SVG}svg"
    assert document.get("role") == "img"
    assert document.get("aria-label", "").startswith(f"{picture.node}: policy {picture.policy}")
    assert document.get("viewBox") == f"0 0 {document.get('width')} {document.get('height')}"


def test_the_svg_has_no_external_references(picture: Picture) -> None:
    text = svg(picture).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|@import|<script|<image|<foreignObject", text)
    assert set(re.findall(r"url\(#([\w-]+)\)", text)) <= set(re.findall(r'<pattern id="([\w-]+)"', text))


def test_every_cpu_device_and_share_has_a_title(picture: Picture) -> None:
    document = ElementTree.fromstring(svg(picture))
    threads = [thread for zone in picture.zones for thread in zone.threads]
    assert len(titles(document, "cpu")) == len(threads)
    for kind in ("cpu", "device", "share"):
        assert all(titles(document, kind))


def test_every_fill_of_a_pod_but_a_narrow_share_carries_its_tag(picture: Picture) -> None:
    text = svg(picture)
    owned = [
        (kind, int(width), tagged)
        for kind, width, tagged in re.findall(
            r'<rect class="(\w+) pod\d"[^>]* width="(\d+)"[^\n]*\n(?:<rect class="over[^\n]*\n)?'
            r'(?:<text class="id ink[^\n]*\n)?(<text class="tag)?',
            text,
        )
    ]
    assert picture.owners == () or owned
    assert all(tagged or (kind == "share" and width < 30) for kind, width, tagged in owned)


def test_the_style_applies_only_to_the_svg(picture_of: Callable[[str], Picture]) -> None:
    style = svg(picture_of("tiny")).partition("<style>")[2].partition("</style>")[0]
    rules = [line for line in style.splitlines() if line and not line.startswith(("@media", "}"))]
    assert all(part.startswith(".topowise ") for line in rules for part in line.split("{")[0].split(","))


def contrast(foreground: str, background: str) -> float:
    """The contrast ratio of WCAG 2.2."""

    def luminance(colour: str) -> float:
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((luminance(foreground), luminance(background)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_all_text_can_be_read(theme: Theme) -> None:
    plain = (theme.canvas, theme.frame, theme.socket, theme.free)
    pairs = [(theme.text, fill) for fill in (*plain, theme.reserved, theme.unknown, theme.bad)]
    pairs += [(theme.dim, fill) for fill in (theme.canvas, theme.frame, theme.free, theme.shared, theme.bad)]
    pairs += [(theme.ink, fill) for fill in theme.owners]
    pairs += [(theme.accent, theme.frame)]
    assert [pair for pair in pairs if contrast(*pair) < 4.5] == []


def test_tags_have_a_single_letter_and_then_two() -> None:
    assert [tag(number) for number in (0, 25, 26, 51, 52, 103, 104)] == ["A", "Z", "a", "z", "AA", "Az", "BA"]
    assert len({tag(number) for number in range(2756)}) == 2756
