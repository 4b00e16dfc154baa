"""What a simulated schedule says: three numbers of a step, and every transfer's part in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from autoshard._core import LinkKind


class Stream(StrEnum):
    """What runs one thing at a time."""

    COMPUTE = "compute"
    TORUS = "torus links"
    """ICI of TPUs."""
    SWITCH = "switched links"
    """NVLink and NVSwitch of GPUs, the two devices of a TPU chip."""
    NETWORK = "network"
    """Between nodes or slices."""
    TO_HOST = "to the host"
    FROM_HOST = "from the host"


HOST_STREAMS = frozenset((Stream.TO_HOST, Stream.FROM_HOST))

STREAMS = {
    LinkKind.RING: Stream.TORUS,
    LinkKind.LINE: Stream.TORUS,
    LinkKind.SWITCHED: Stream.SWITCH,
    LinkKind.NETWORK: Stream.NETWORK,
}
"""What goes over each kind of link."""


@dataclass(frozen=True, eq=False, slots=True)
class Transfer:
    """A collective or a copy to or from the host, as it stands in the program once."""

    name: str
    """In the HLO text, ``all-gather-start.3``."""
    what: str
    """``all-gather over tp``, ``copy to the host``."""
    place: str | None
    """``file:line`` of the user's code."""
    op_name: str
    seconds: float
    """Seconds of one run that nothing disturbs."""
    streams: tuple[Stream, ...]
    """What it takes all of, from its beginning to its end."""


@dataclass(frozen=True, slots=True)
class ScheduledTransfer:
    """A transfer and what the step waits for it."""

    transfer: Transfer
    times: int
    """Runs in one step."""
    exposed_seconds: float
    """Seconds of all runs that compute waits for it, those in which its stream was still taken by
    another one among them."""
    slack_seconds: float
    """How much longer each run could take and nothing would wait for it: the least of all runs."""

    @property
    def total_seconds(self) -> float:
        """Seconds of all runs of one step."""
        return self.transfer.seconds * self.times


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a stream does in one step; loops only until their trips repeat."""

    stream: Stream
    name: str
    start: float
    """Seconds since the step began."""
    seconds: float
    place: str | None = None
    op_name: str = ""
    is_wait: bool = False
    """Compute does nothing but wait for a transfer."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step of a compiled program on one device, in the compiler's order.

    ``all_hidden_seconds <= scheduled_seconds <= nothing_hidden_seconds``.
    """

    scheduled_seconds: float
    """Seconds of the step as scheduled: ``busy_seconds`` of compute and what it waits."""
    compute_seconds: float
    """Seconds of compute that nothing slows down."""
    busy_seconds: Mapping[Stream, float]
    """Seconds that each stream is taken; of compute with what collectives beside it slow it
    down."""
    slowdown: float
    """Times as long that compute takes while a collective runs beside it."""
    transfers: tuple[ScheduledTransfer, ...]
    """Most exposed first."""
    events: tuple[Event, ...] = field(repr=False)
    """In the order of their beginning on each stream; on one stream none overlap."""

    @property
    def nothing_hidden_seconds(self) -> float:
        """Seconds of the step if everything ran one after the other."""
        return self.compute_seconds + sum(one.total_seconds for one in self.transfers)

    @property
    def all_hidden_seconds(self) -> float:
        """Seconds of the step if only the busiest stream counted, and nothing was slowed down."""
        links = [taken for stream, taken in self.busy_seconds.items() if stream != Stream.COMPUTE]
        return max(self.compute_seconds, *links, 0.0)

    @property
    def exposed_seconds(self) -> float:
        """Seconds that compute waits for transfers."""
        return sum(one.exposed_seconds for one in self.transfers)

    def to_json(self) -> dict[str, Any]:
        """Everything but the events, for ``json.dumps``; seconds of one device in one step."""
        return {
            "nothing_hidden_seconds": self.nothing_hidden_seconds,
            "scheduled_seconds": self.scheduled_seconds,
            "all_hidden_seconds": self.all_hidden_seconds,
            "exposed_seconds": self.exposed_seconds,
            "slowdown": self.slowdown,
            "busy_seconds": {stream.value: taken for stream, taken in self.busy_seconds.items()},
            "transfers": [
                {
                    "name": one.transfer.name,
                    "what": one.transfer.what,
                    "streams": [stream.value for stream in one.transfer.streams],
                    "location": one.transfer.place,
                    "seconds": one.transfer.seconds,
                    "times": one.times,
                    "exposed_seconds": one.exposed_seconds,
                    "slack_seconds": one.slack_seconds,
                }
                for one in self.transfers
            ],
        }
