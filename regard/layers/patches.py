"""Images as sequences of patches. Dosovitskiy et al. 2021, equation 1.

    image ─▶ patches of p × p pixels ─▶ projection ─▶ [CLS], patches + positions

Shapes: pixels (batch, channels, height, width), output (batch, tokens + patches, width).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.dropout import Dropout
from regard.layers.image_encoder import ImageConfig, flatten_cells


class PatchProjection(nn.Conv2d):
    """One linear layer for every patch: a convolution whose stride is its kernel."""

    def __init__(self, channels: int, width: int, patch: int):
        super().__init__(channels, width, patch, patch)

    def init(self) -> None:
        """Features of unit variance from pixels of unit variance."""
        nn.init.normal_(self.weight, std=self.weight[0].numel() ** -0.5)
        assert self.bias is not None
        nn.init.zeros_(self.bias)


class GridPositions(nn.Module):
    """A learned vector for each cell of a grid, after one for each of the `tokens` before it."""

    def __init__(self, width: int, rows: int, columns: int, tokens: int = 0):
        super().__init__()
        self.rows = rows
        self.columns = columns
        self.tokens = tokens
        self.table = nn.Parameter(torch.empty(tokens + rows * columns, width))
        nn.init.normal_(self.table, std=0.02)

    def forward(self, rows: int, columns: int) -> Tensor:
        """Those of a grid of this size: bicubic interpolation where it is another. Section 3.2."""
        if (rows, columns) == (self.rows, self.columns):
            return self.table
        first, grid = self.table[: self.tokens], self.table[self.tokens :]
        image = grid.view(1, self.rows, self.columns, -1).permute(0, 3, 1, 2)
        resized = F.interpolate(image, (rows, columns), mode="bicubic", align_corners=False)
        return torch.cat([first, flatten_cells(resized)[0]])


class PatchEmbedding(nn.Module):
    """Learned tokens and projected patches, with their positions added."""

    def __init__(self, config: ImageConfig, patch: int, width: int, dropout: float, tokens: tuple[str, ...]):
        super().__init__()
        self.projection = PatchProjection(config.channels, width, patch)
        self.tokens = nn.ParameterDict({name: nn.Parameter(torch.empty(1, width)) for name in tokens})
        height, wide = config.image_shape
        self.positions = GridPositions(width, height // patch, wide // patch, len(tokens))
        self.dropout = Dropout(dropout)

    def init(self) -> None:
        self.projection.init()
        for token in self.tokens.values():
            nn.init.normal_(token, std=0.02)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.projection(pixels)
        first = [token.expand(len(pixels), 1, -1) for token in self.tokens.values()]
        x = torch.cat([*first, flatten_cells(patches)], 1)
        return self.dropout(x + self.positions(*patches.shape[2:]))
