"""What a GPU is called: CUDA tells UUIDs without a prefix, those of MIG instances as well."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sweeper.trainer import device as devices

BARE = "cccc1111-0000-5000-8000-000000000003"


@pytest.mark.parametrize(
    ("visible", "index", "told", "uuid"),
    [
        (None, 0, BARE, f"GPU-{BARE}"),
        (None, None, f"GPU-{BARE}", f"GPU-{BARE}"),
        (None, 0, "", ""),
        ("0,1", 1, BARE, f"GPU-{BARE}"),
        (f"GPU-{BARE}", 0, BARE, f"GPU-{BARE}"),
        (f"MIG-{BARE}", 0, BARE, f"MIG-{BARE}"),
        (f"MIG-{BARE}", None, BARE, f"MIG-{BARE}"),
        # Whatever CUDA tells of it: the whole GPU's would make another instance visible.
        (f"GPU-1, MIG-{BARE}", 1, "11111111-aaaa-4bbb-8ccc-000000000001", f"MIG-{BARE}"),
        (f"MIG-{BARE}", 1, "11111111-aaaa", "GPU-11111111-aaaa"),
    ],
)
def test_a_device_has_the_name_that_makes_it_visible(monkeypatch, visible, index, told, uuid):
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    properties = SimpleNamespace(name="NVIDIA A100", uuid=told, total_memory=5 * 2**30, major=8, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    found = devices.describe(torch.device("cuda", index) if index is not None else torch.device("cuda"))
    assert found.uuid == uuid
    assert (found.name, found.memory_gib, found.capability) == ("NVIDIA A100", 5.0, "8.0")
