"""The texts of refusals by the name of their value: `refusals.NOT_NOW`, as answers, events and screens have them."""

from __future__ import annotations

from types import SimpleNamespace

from topowise_scheduler.explain.refusal_texts import TEXTS
from topowise_scheduler.verdicts.refusals import Refusal

refusals = SimpleNamespace(**{refusal.name: TEXTS[refusal] for refusal in Refusal})
