"""A trial's place keeps its names on disk."""

from __future__ import annotations

from sweeper.core.codec import decode, encode
from sweeper.core.place import Place


def test_the_neighbours_are_stored_as_0_1_0_stored_them():
    place = Place(host="node1", num_neighbours=2)
    assert encode(place)["beside"] == 2
    assert decode(Place, {"host": "node1", "beside": 2}) == place
