"""Networks that read a window of past rows and forecast the next ones."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

HEADS = 4


class Forecaster(nn.Module):
    """An LSTM over the window, or a bidirectional one whose last step looks back by attention.

    Args:
        num_columns: Columns of the window.
        targets: Which of them are forecast; a slice, since indexing by a list would copy the list
            to the device in every step.
        horizon: Rows to forecast.
        seq_length: Rows of the window.
        kind: `lstm`, or `bilstm_attention`: learned positions are added to the states of a
            bidirectional LSTM, and attention of 4 heads, a residual connection and a LayerNorm follow.
    """

    def __init__(
        self,
        num_columns: int,
        targets: slice,
        horizon: int,
        seq_length: int,
        *,
        kind: str,
        hidden_size: int,
        num_layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.targets, self.horizon = targets, horizon
        self.attends = kind == "bilstm_attention"
        self.recurrent = nn.LSTM(
            num_columns,
            hidden_size,
            num_layers,
            batch_first=True,
            dropout=dropout if num_layers > 1 else 0.0,
            bidirectional=self.attends,
        )
        width = hidden_size * (2 if self.attends else 1)
        if self.attends:
            self.positions = nn.Parameter(0.02 * torch.randn(seq_length, width))
            self.attention = nn.MultiheadAttention(width, HEADS, dropout=dropout, batch_first=True)
            self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, horizon * len(range(num_columns)[targets]))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the next rows [batch, horizon, targets] from windows x [batch, seq_length, columns].

        What the network sees and what it gives are differences to the window's last row: the level
        is then known, though it moves over the years and away from that of the training part
        (NLinear; Zeng et al., AAAI 2023). What it gives begins at zero: a network that has learned
        nothing repeats the last value.
        """
        states = self.recurrent(x - x[:, -1:])[0]
        last = states[:, -1]
        if self.attends:
            states = states + self.positions
            # Only the last step's result is used, so only that step is a query.
            query = states[:, -1:]
            last = self.norm(query + self.attention(query, states, states, need_weights=False)[0])[:, 0]
        change = self.head(self.dropout(last)).float().unflatten(1, (self.horizon, -1))
        return cast(Tensor, x[:, -1:, self.targets] + change)
