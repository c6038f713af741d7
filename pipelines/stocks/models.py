"""Networks that read a window of a stock's days and predict one number."""

from __future__ import annotations

import torch
from torch import Tensor, nn

HEADS = 4


class StockModel(nn.Module):
    """Features and the stock's embedding, repeated over time, through a network to one number.

    Args:
        num_features: Columns of the window.
        num_stocks: Number of ids.
        seq_length: Days of the window.
        kind: `lstm`, `gru`, or `transformer`: learned positions, then encoder layers of 4 heads and 4 *
            hidden_size, normalised before each part. All of them predict from the last day's state.
    """

    def __init__(
        self,
        num_features: int,
        num_stocks: int,
        seq_length: int,
        *,
        kind: str,
        hidden_size: int,
        num_layers: int,
        dropout: float,
        embedding_dim: int,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_stocks, embedding_dim)
        width = num_features + embedding_dim
        self.body: nn.Module
        if kind == "transformer":
            self.body = Transformer(width, seq_length, hidden_size, num_layers, dropout)
        else:
            self.body = (nn.LSTM if kind == "lstm" else nn.GRU)(
                width,
                hidden_size,
                num_layers,
                batch_first=True,
                dropout=dropout if num_layers > 1 else 0.0,
            )
        self.head = nn.Sequential(
            nn.Linear(hidden_size, hidden_size // 2),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_size // 2, 1),
        )

    def forward(self, x: Tensor, stock: Tensor) -> Tensor:
        """Returns predictions [batch] from windows x [batch, days, features] and ids [batch]."""
        identity = self.embedding(stock).unsqueeze(1).expand(-1, x.shape[1], -1)
        states, _ = self.body(torch.cat((x, identity), dim=2))
        prediction: Tensor = self.head(states[:, -1]).squeeze(-1)
        return prediction


class Transformer(nn.Module):
    """An encoder that is called, and answers, as nn.LSTM does. All days are past: nothing is masked."""

    def __init__(
        self, width: int, seq_length: int, hidden_size: int, num_layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.enter = nn.Linear(width, hidden_size)
        self.positions = nn.Parameter(0.02 * torch.randn(seq_length, hidden_size))
        layer = nn.TransformerEncoderLayer(
            hidden_size, HEADS, 4 * hidden_size, dropout, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(
            layer, num_layers, norm=nn.LayerNorm(hidden_size), enable_nested_tensor=False
        )

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Returns states [batch, days, hidden_size] from x [batch, days, width]."""
        return self.layers(self.enter(x) + self.positions), None
