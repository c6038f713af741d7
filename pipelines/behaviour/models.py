"""Classifiers of sensor windows: a residual CNN on spectrograms, a transformer, and the two fused."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sweeper import UserError

KINDS = ("cnn", "transformer", "fusion")
HEAD = 24
"""Width of an attention head; a model's size is a multiple of it, and has 8 heads at 192."""
SENSOR = 3
"""Channels of the first sensor (PPG: green, infrared, red); what follows is the second's (IMU)."""
FLOOR = 1e-4
"""Added to a spectrogram's power before the logarithm: silence, in units of the channel's variance."""


def make_model(
    kind: str,
    channels: int,
    window: int,
    classes: int,
    *,
    hidden_size: int,
    num_layers: int,
    dropout: float,
    n_fft: int,
) -> nn.Module:
    """Returns a module from windows [batch, window, channels] to scores [batch, classes].

    Args:
        hidden_size: One size for every kind: the transformer's embedding; the CNN is a third of it wide
            in its first stage, and what is fused is four thirds of it. At 192 these are the 192, 64
            and 256 of guide 002's programs.

    Raises:
        UserError: The size is no multiple of 24, or a window is too short for this network.
    """
    if hidden_size % HEAD:
        raise UserError(
            f"`model.hidden_size` must be a multiple of {HEAD}, but got {hidden_size}; "
            f"the nearest is {max(HEAD, round(hidden_size / HEAD) * HEAD)}."
        )
    if kind != "transformer":
        _check_spectrogram(window, n_fft)
    elif window < 2:
        raise UserError(f"`model.kind: transformer` needs windows of at least 2 samples, but got {window}.")
    if kind == "cnn":
        cnn = SpectrogramCnn(channels, hidden_size // 3, n_fft)
        return nn.Sequential(cnn, _head(cnn.features, classes, dropout))
    transformer = SensorTransformer(channels, window, hidden_size, num_layers, dropout)
    if kind == "transformer":
        return nn.Sequential(transformer, nn.Linear(hidden_size, classes))
    fusion = Fusion(SpectrogramCnn(channels, hidden_size // 3, n_fft), transformer)
    return nn.Sequential(fusion, _head(fusion.features, classes, dropout))


def _head(width: int, classes: int, dropout: float) -> nn.Module:
    """Two hidden layers, each half of what comes before it."""
    return nn.Sequential(
        nn.Linear(width, width // 2),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(width // 2, width // 4),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(width // 4, classes),
    )


def _check_spectrogram(window: int, n_fft: int) -> None:
    """Refuses windows of which the last stage would see one place: a batch of one has no variance there."""
    places = math.ceil((n_fft // 2 + 1) / 32) * math.ceil((1 + window // (n_fft // 4)) / 32)
    if window < n_fft or places < 2:
        raise UserError(
            f"`model.kind` cnn and fusion need windows of at least `model.n_fft` samples and "
            f"`model.n_fft >= 64` (or a window of 8 times `model.n_fft`), but got a window of {window} and "
            f"n_fft {n_fft}; change `model.n_fft` or `data.window`, or use `model.kind: transformer`."
        )


class SpectrogramCnn(nn.Module):
    """The log power of a short-time Fourier transform through a residual CNN; [batch, 8 * width]."""

    hann: Tensor

    def __init__(self, channels: int, width: int, n_fft: int) -> None:
        super().__init__()
        self.n_fft, self.features = n_fft, 8 * width
        self.register_buffer("hann", torch.hann_window(n_fft), persistent=False)
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks, inputs = [], width
        for stage in range(4):
            outputs = width * 2**stage
            blocks += [Block(inputs, outputs, stride=2 if stage else 1), Block(outputs, outputs)]
            inputs = outputs
        self.stages = nn.Sequential(*blocks)

    def spectrogram(self, x: Tensor) -> Tensor:
        """Returns log power [batch, channels, frequencies, frames] of x [batch, window, channels]."""
        flat = x.float().transpose(1, 2).flatten(0, 1)
        transform = torch.stft(
            flat, self.n_fft, self.n_fft // 4, window=self.hann, normalized=True, return_complex=True
        )
        power = torch.view_as_real(transform).square().sum(-1)
        logarithm: Tensor = (power + FLOOR).log().unflatten(0, (len(x), -1))
        return logarithm

    def forward(self, x: Tensor) -> Tensor:
        """Returns features [batch, 8 * width] of windows x [batch, window, channels]."""
        features: Tensor = self.stages(self.stem(self.spectrogram(x))).mean((2, 3))
        return features


class Block(nn.Module):
    """Two convolutions beside a shortcut, their channels weighted by what they hold overall.

    Residual learning: He et al. 2016; squeeze and excitation: Hu et al. 2018.
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.excitation = nn.Sequential(
            nn.Linear(outputs, outputs // 8),
            nn.ReLU(inplace=True),
            nn.Linear(outputs // 8, outputs),
            nn.Sigmoid(),
        )
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Returns [batch, outputs, height / stride, width / stride] from x [batch, inputs, height, width]."""
        residual = self.residual(x)
        weight = self.excitation(residual.mean((2, 3)))
        return torch.relu(residual * weight[:, :, None, None] + self.shortcut(x))


class SensorTransformer(nn.Module):
    """A convolutional front end for each sensor, joined, through a transformer; [batch, size]."""

    positions: Tensor

    def __init__(self, channels: int, window: int, size: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.features = size
        self.sensors = [SENSOR, channels - SENSOR] if channels > SENSOR else [channels]
        self.fronts = nn.ModuleList(_front(sensor, size) for sensor in self.sensors)
        self.join = nn.Conv1d(size * len(self.sensors), size, 1)
        self.register_buffer("positions", _waves(window // 2, size), persistent=False)
        self.dropout = nn.Dropout(dropout)
        # One by one: nn.TransformerEncoder starts all its layers from the same weights.
        heads = size // HEAD
        layers = [
            nn.TransformerEncoderLayer(size, heads, 2 * size, dropout, batch_first=True, norm_first=True)
            for _ in range(num_layers)
        ]
        for layer in layers:
            # No dropout in the attention itself: with it, a CPU has no fused kernel.
            layer.self_attn.dropout = 0.0
        self.layers = nn.Sequential(*layers, nn.LayerNorm(size))

    def forward(self, x: Tensor) -> Tensor:
        """Returns features [batch, size] of windows x [batch, window, channels]."""
        parts = x.transpose(1, 2).split(self.sensors, dim=1)
        seen = torch.cat([front(part) for front, part in zip(self.fronts, parts, strict=True)], dim=1)
        tokens = self.join(seen).transpose(1, 2) + self.positions
        features: Tensor = self.layers(self.dropout(tokens)).mean(1)
        return features


def _front(channels: int, size: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(channels, size // 3, 9, padding=4),
        nn.ReLU(inplace=True),
        nn.Conv1d(size // 3, size // 3 * 2, 9, padding=4),
        nn.ReLU(inplace=True),
        nn.MaxPool1d(2),
        nn.Conv1d(size // 3 * 2, size, 9, padding=4),
        nn.ReLU(inplace=True),
    )


def _waves(length: int, size: int) -> Tensor:
    """Sine and cosine positions [length, size] (Vaswani et al. 2017)."""
    rate = torch.exp(torch.arange(0, size, 2) * (-math.log(10_000.0) / size))
    angle = torch.arange(length)[:, None] * rate
    return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)


class Fusion(nn.Module):
    """The features of both networks as two tokens which attend to each other, weighted by a gate."""

    def __init__(self, cnn: SpectrogramCnn, transformer: SensorTransformer) -> None:
        super().__init__()
        self.cnn, self.transformer = cnn, transformer
        heads, size = transformer.features // HEAD, transformer.features // 3 * 4
        self.features = size
        self.from_cnn = nn.Linear(cnn.features, size)
        self.from_transformer = nn.Linear(transformer.features, size)
        self.attention = nn.MultiheadAttention(size, heads, batch_first=True)
        self.gate = nn.Linear(size, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Returns features [batch, size] of windows x [batch, window, channels]."""
        tokens = torch.stack((self.from_cnn(self.cnn(x)), self.from_transformer(self.transformer(x))), dim=1)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        features: Tensor = (self.gate(tokens).softmax(1) * tokens).sum(1)
        return features
