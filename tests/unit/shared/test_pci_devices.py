"""`topowise.io/pci`: compact, the same for the same devices, and read back with limits."""

from __future__ import annotations

import pytest

from topowise.attributes import pci_devices
from topowise.attributes.pci_devices import Located
from topowise.errors import ParseError
from topowise.pci import Place

NEAR = Place(("pci0000:17", "0000:17:00.0"), 0)
FAR = Place(("pci10000:00",), None)
DEVICES = {
    "0000:18:00.2": Located("0000:18:00.2", NEAR),
    "GPU-5e": Located("0000:18:00.0", NEAR),
    "10000:00:04.0": Located("10000:00:04.0", FAR),
    "0000:18:00.1": Located("0000:18:00.1", NEAR),
}


def test_devices_of_the_same_place_are_written_together() -> None:
    assert pci_devices.write(DEVICES) == (
        '[["pci0000:17/0000:17:00.0",0,["0000:18:00.1","0000:18:00.2"],{"GPU-5e":"0000:18:00.0"}],'
        '["pci10000:00",null,["10000:00:04.0"],{}]]',
        0,
    )


def test_the_order_of_devices_does_not_matter_and_nothing_is_lost() -> None:
    text = pci_devices.write(DEVICES).text
    assert pci_devices.write(dict(reversed(DEVICES.items()))).text == text
    assert pci_devices.read(text) == DEVICES


def test_devices_beyond_the_size_limit_are_counted() -> None:
    whole = pci_devices.write(DEVICES).text
    assert pci_devices.write(DEVICES, len(whole)) == (whole, 0)
    cut = pci_devices.write(DEVICES, len(whole) - 1)
    assert cut.omitted == 1
    assert len(cut.text) < len(whole)
    assert pci_devices.read(cut.text) == {name: device for name, device in DEVICES.items() if device.place == NEAR}
    assert pci_devices.write(DEVICES, 10) == ("[]", 4)


def test_a_thousand_virtual_functions_fit() -> None:
    many = {
        (address := f"0000:{bus:02x}:{slot:02x}.{number}"): Located(address, NEAR)
        for bus in range(4)
        for slot in range(32)
        for number in range(8)
    }
    written = pci_devices.write(many)
    assert written.omitted == 0
    assert len(written.text) < 16 * len(many)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[[]]",
        '[["pci0000:17"]]',
        '[["0000:17:00.0",0,["0000:18:00.1"],{}]]',
        '[["pci0000:17/x",0,["0000:18:00.1"],{}]]',
        '[["pci0000:17/0000:17:00.0/0000:17:00.0",0,[],{}]]',
        '[["pci0000:17",-1,[],{}]]',
        '[["pci0000:17",0,["eth0"],{}]]',
        '[["pci0000:17",0,[],{"a":"b"}]]',
        f'[["pci0000:17",0,[],{{"{"x" * 400}":"0000:18:00.0"}}]]',
        " " * (pci_devices.LONGEST + 1),
    ],
)
def test_what_no_exporter_of_ours_wrote_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        pci_devices.read(text)
