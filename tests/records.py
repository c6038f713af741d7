"""Records of made-up trainings."""

from __future__ import annotations

from sweeper.race.record import Record

LOSSES = [1 / (1 + 0.1 * number) for number in range(40)]


def run(losses: list[float], *, batch: str = "a", random: str = "r", end: str = "done") -> Record:
    """Returns a record with these losses; `end` is why it ends, and empty if it was cut off."""
    events: list[dict[str, object]] = []
    for number, loss in enumerate(losses, start=1):
        events += [
            {"batch": f"{batch}{number}"},
            {"loss": [loss.hex()]},
            {"gradients": 1, "norm": loss, **({"sums": [[loss, loss]]} if number <= 4 else {})},
            {"step": number, "samples": 8, "rates": [0.1], "random": random},
        ]
    if end:
        events.append({"end": end, "parameters": str(losses[-1]), "moved": [True]})
    return Record(events={"record-0": events})
