r"""DeepNorm, for very deep Post-LN Transformers.

$$y = N(\alpha x + F(x)), \qquad \alpha = (2L)^{1/4}, \quad \beta = (8L)^{-1/4}$$

Wang et al. 2022, Figure 2: alpha = (2L)^(1/4) on the skip path, and Glorot's normal initialisation with gain beta =
(8L)^(-1/4) for the value, output and feed-forward projections, gain 1 for query and key: the decoder-only column of the
figure, per depth. With N encoder and M decoder blocks, the other column: 0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16),
(3M)^(1/4) and (12M)^(-1/4), the projections of cross-attention being the decoder's.
Deviations: in language models RMSNorm for LayerNorm, and all three matrices of SwiGLU count as feed-forward; in
encoder-decoders the draws are uniform, with the same variance. The scripts behind CoMT's table fix alpha for 32 layers
and invert beta; this does not.
"""

from comt_cli.methods.base import ConnectionMethod


class DeepNormMethod(ConnectionMethod):
    """No options: the connection has none."""
