"""ResNet-34 on each frame of a clip, its stages gated over time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

BLOCKS = (3, 4, 6, 3)
"""Residual blocks of each stage: the 34 layers of He et al. 2015."""


class ResNet(nn.Module):
    """Features of frames: 8 `width` numbers each.

    Batch statistics in training are over all frames, those that pad a clip among them; in evaluation
    a clip does not depend on its padding.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_features = 8 * width
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages, inputs = [], width
        for number, blocks in enumerate(BLOCKS):
            outputs = width << number
            first = Block(inputs, outputs, stride=2 if number else 1)
            stages.append(nn.Sequential(first, *(Block(outputs, outputs) for _ in range(blocks - 1))))
            inputs = outputs
        self.stages = nn.ModuleList(stages)
        self.gates = nn.ModuleList(Gate(width << number) for number in range(len(BLOCKS)))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        """Returns features [batch, frames, 8 width] of images [batch, frames, 3, height, width] (uint8)."""
        clips = x.shape[:2]
        x = self.stem(x.flatten(0, 1).float() / 127.5 - 1)
        for stage, gate in zip(self.stages, self.gates, strict=True):
            x = gate(stage(x), known)
        features: Tensor = x.mean((2, 3)).unflatten(0, clips)
        return features


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Returns [frames, outputs, height, width] from [frames, inputs, ...]."""
        return functional.relu(self.body(x) + self.shortcut(x))


class Gate(nn.Module):
    """Weighs a frame's channels by how they move in the frames around it.

    TFNet's attention does so at each pixel; here it sees a channel's mean over the frame.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = max(4, channels // 4)
        self.inner = nn.Conv1d(channels, hidden, 3, padding=1)
        self.outer = nn.Conv1d(hidden, channels, 3, padding=1)

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        """Returns x [batch * frames, channels, height, width] weighted; `known` [batch, frames]."""
        seen = x.mean((2, 3)).unflatten(0, known.shape).transpose(1, 2)
        hidden = functional.leaky_relu(self.inner(seen * known.unsqueeze(1)))
        weight = torch.sigmoid(self.outer(hidden * known.unsqueeze(1))).transpose(1, 2).flatten(0, 1)
        return x * weight[:, :, None, None]
