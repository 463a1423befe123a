"""Which requests to models are on their way in batches, written down so that whoever comes after a crash fetches their replies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from evo.records import Event, EventKind


@dataclass
class Sent:
    """One request of a batch.

    Attributes:
        batch: The endpoint's name for the batch.
        dollars, tokens: Set aside for the request.
        reservation: The name under which they are held at present; empty where whoever held them is dead.
    """

    batch: str
    dollars: float
    tokens: int
    reservation: str = ""


def batch_event(batch: str, requests: Mapping[str, Sent]) -> Event:
    """What is recorded of a batch, by names of its requests."""
    held = {name: (sent.dollars, sent.tokens) for name, sent in requests.items()}
    return Event(EventKind.BATCH, "", 0, "", "", json.dumps({"batch": batch, "requests": held}))


def sent_before(events: Iterable[Event]) -> dict[str, Sent]:
    """All requests that were recorded as sent in batches, by their names. Whoever finds one answered never asks for it again.

    A record that is none, from a bundle that somebody else wrote, is passed over: the request is then made anew.
    """
    found: dict[str, Sent] = {}
    for event in events:
        if event.kind is EventKind.BATCH:
            try:
                record = json.loads(event.reason)
                batch = str(record["batch"])
                found |= {str(name): Sent(batch, float(held[0]), int(held[1])) for name, held in record["requests"].items()}
            except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
                continue
    return {name: sent for name, sent in found.items() if sent.dollars >= 0 and sent.tokens >= 0}
