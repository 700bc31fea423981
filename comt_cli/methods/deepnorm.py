r"""DeepNorm: Post-LN with a weighted skip path, for very deep Transformers (Wang et al. 2022, Figure 2).

$$y = N(\alpha x + F(x)), \qquad \alpha = (2L)^{1/4}, \quad \beta = (8L)^{-1/4}$$

alpha multiplies the skip path. Glorot's normal initialisation has gain beta for the value, output and feed-forward
projections and gain 1 for query and key (the decoder-only column of the figure, with L blocks). With N encoder and M
decoder blocks, the encoder has 0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16), the decoder (3M)^(1/4) and (12M)^(-1/4);
projections of cross-attention use the decoder's beta.
Deviations: Language models use RMSNorm instead of LayerNorm, and all three matrices of SwiGLU count as feed-forward.
Encoder-decoders draw from a uniform distribution of the same variance. The scripts behind CoMT's table fix alpha for 32
layers and invert beta; this method does not (see `deepnorm-mixln-code`).
"""

from comt_cli.methods.base import ConnectionMethod


class DeepNormMethod(ConnectionMethod):
    """No options: the connection has none."""
