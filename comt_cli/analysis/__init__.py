"""What a trained network does: the values of its gates, its residual stream, its gradients; and the figures of them."""
