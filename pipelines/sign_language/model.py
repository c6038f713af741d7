"""TFNet's idea: frames over time and over frequency, through convolutions and BiLSTMs to glosses.

frames ─► encoder ─┬─► convolutions ─► BiLSTM ─┬─► + ─► fused head (what is decoded)
                   └─ |FFT| ─► conv. ─► BiLSTM ─┘        and in training a head at each of the four

Clips are padded, and nothing that is beyond a clip's end has a part in what it becomes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .resnet import ResNet


def inside(lengths: Tensor, steps: int) -> Tensor:
    """Returns whether a step is part of its clip [batch, steps]."""
    return torch.arange(steps, device=lengths.device) < lengths[:, None]


class SignModel(nn.Module):
    """Scores of glosses for clips of landmarks or images.

    Args:
        shape: A frame's: [numbers] of landmarks, or [3, height, width] of an image.
        num_classes: Glosses and the blank, which is 0.
        step_frames: Frames to a step of the output: 1, 2 or 4.
    """

    def __init__(
        self,
        shape: list[int],
        num_classes: int,
        *,
        step_frames: int,
        hidden_size: int,
        num_layers: int,
        width: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.encoder: LandmarkEncoder | ResNet
        self.encoder = LandmarkEncoder(shape[0], width, dropout) if len(shape) == 1 else ResNet(width)
        features = self.encoder.num_features
        self.dropout = nn.Dropout(dropout)
        self.step_frames = step_frames
        self.branches = nn.ModuleList(
            Branch(features, hidden_size, num_layers, step_frames) for _ in range(2)
        )
        # One for each branch, shared by its BiLSTM and its convolutions, and the fused one.
        self.heads = nn.ModuleList(NormLinear(hidden_size, num_classes) for _ in range(3))

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Returns scores [heads, batch, steps, classes], the last head's the fused, and valid steps [batch].

        Args:
            x: Frames [batch, frames, ...].
            lengths: Frames [batch] of each clip.

        In training there are five heads: BiLSTM and convolutions of either branch, and the fused one.
        """
        known = inside(lengths, x.shape[1])
        features = self.dropout(self.encoder(x, known)).float() * known.unsqueeze(2)
        seen = [features, spectrum(features, lengths)]
        steps = lengths // self.step_frames
        found = [branch(each, lengths) for branch, each in zip(self.branches, seen, strict=True)]
        fused = self.heads[2](found[0][0] + found[1][0])
        if not self.training:
            return fused.unsqueeze(0), steps
        scores = [head(states) for head, both in zip(self.heads[:2], found, strict=True) for states in both]
        return torch.stack([*scores, fused]), steps


class LandmarkEncoder(nn.Module):
    """Two layers over the numbers of each frame."""

    def __init__(self, numbers: int, width: int, dropout: float) -> None:
        super().__init__()
        self.num_features = width
        self.layers = nn.Sequential(
            nn.Linear(numbers, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width), nn.ReLU()
        )

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        """Returns features [batch, frames, width] of frames [batch, frames, numbers]."""
        features: Tensor = self.layers(x.float())
        return features


def spectrum(x: Tensor, lengths: Tensor) -> Tensor:
    """Returns the amplitudes |FFT| / length of each clip over its own frames.

    A transform over the padded length would give each clip other frequencies in another batch. So
    each has one of its own length by Bluestein's algorithm (1970), k n = (k² + n² - (k - n)²) / 2,
    whose shapes are static: a convolution with a chirp, by transforms of a power of two.

    Args:
        x: Real numbers [batch, frames, features], 0 beyond a clip's end.
        lengths: Frames [batch] of each clip.

    Returns:
        Amplitudes [batch, frames, features], float32, of the frequencies k / length; 0 beyond them.
    """
    with torch.autocast(x.device.type, enabled=False):
        frames = x.shape[1]
        size = 1 << max(0, 2 * frames - 2).bit_length()
        at = torch.arange(size, device=x.device)
        near = torch.minimum(at, size - at).clamp(max=frames - 1)
        # Whole turns are removed while the square is still an integer: float32 cannot hold it exactly.
        turns = near.square() % (2 * lengths[:, None])
        angle = turns.float() * (math.pi / lengths[:, None])
        chirp = torch.polar(torch.ones_like(angle), angle).unsqueeze(2)
        spread = torch.fft.fft(x.float() * chirp[:, :frames].conj(), n=size, dim=1)
        found: Tensor = torch.fft.ifft(spread * torch.fft.fft(chirp, dim=1), dim=1)[:, :frames].abs()
        return found * (inside(lengths, frames) / lengths[:, None]).unsqueeze(2)


class Branch(nn.Module):
    """Temporal convolutions K5-P2-K5-P2 and a BiLSTM."""

    def __init__(self, features: int, hidden: int, num_layers: int, step_frames: int) -> None:
        super().__init__()
        self.pools = [2 if step_frames == 4 else 1, 2 if step_frames >= 2 else 1]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(width, hidden, 5, padding=2) for width in (features, hidden)
        )
        self.norms = nn.ModuleList(ClipNorm(hidden) for _ in range(2))
        self.recurrent = BiLstm(hidden, num_layers)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Returns states of the BiLSTM and of the convolutions, each [batch, steps, hidden]."""
        x = x.transpose(1, 2)
        for convolution, norm, pool in zip(self.convolutions, self.norms, self.pools, strict=True):
            known = inside(lengths, x.shape[2]).unsqueeze(1)
            x = functional.max_pool1d(torch.relu(norm(convolution(x * known), known)), pool)
            lengths = lengths // pool
        x = x.transpose(1, 2)
        return self.recurrent(x, lengths), x


class ClipNorm(nn.BatchNorm1d):
    """Batch normalisation whose statistics are of the clips' own steps, in float32."""

    def forward(self, x: Tensor, known: Tensor | None = None) -> Tensor:
        """Returns x [batch, features, steps] normalised; `known` [batch, 1, steps] are the clips' own."""
        x = x.float()
        if not self.training or known is None:
            return super().forward(x)
        count = known.sum().clamp(min=1)
        mean = (x * known).sum((0, 2), keepdim=True) / count
        centred = (x - mean) * known
        variance = centred.square().sum((0, 2), keepdim=True) / count
        with torch.no_grad():
            assert self.running_mean is not None
            assert self.running_var is not None
            self.running_mean.lerp_(mean.flatten(), self.momentum or 0.1)
            self.running_var.lerp_(
                variance.flatten() * (count / (count - 1).clamp(min=1)), self.momentum or 0.1
            )
        scale = self.weight[:, None] * torch.rsqrt(variance + self.eps)
        return centred * scale + self.bias[:, None]


class BiLstm(nn.Module):
    """Layers of two LSTMs, one of which reads each clip from its own end: packing would ask the host."""

    def __init__(self, hidden: int, num_layers: int) -> None:
        super().__init__()
        sizes = (hidden // 2, hidden - hidden // 2)
        self.layers = nn.ModuleList(
            nn.LSTM(hidden, size, batch_first=True) for _ in range(num_layers) for size in sizes
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Returns states [batch, steps, hidden] from x of the same shape."""
        step = torch.arange(x.shape[1], device=x.device)
        mirror = torch.where(step < lengths[:, None], lengths[:, None] - 1 - step, step).unsqueeze(2)
        for onward, back in zip(self.layers[::2], self.layers[1::2], strict=True):
            turned, _ = back(x.gather(1, mirror.expand_as(x)))
            x = torch.cat((onward(x)[0], turned.gather(1, mirror.expand_as(turned))), dim=2)
        return x


class NormLinear(nn.Module):
    """A linear layer whose weights of each class have one length.

    In TFNet it is 1, at 1024 states between -1 and 1. With fewer of them it is longer, so that scores
    have the same range: at 64 states and length 1 no gloss could be told with certainty.
    """

    def __init__(self, features: int, num_classes: int) -> None:
        super().__init__()
        self.length = math.sqrt(1024 / features)
        self.weight = nn.Parameter(torch.empty(features, num_classes))
        nn.init.xavier_uniform_(self.weight, gain=nn.init.calculate_gain("relu"))

    def forward(self, x: Tensor) -> Tensor:
        """Returns scores [..., classes] from x [..., features]."""
        return x @ (self.length * functional.normalize(self.weight, dim=0))
