"""comt as a library: gates and residual connections in models of any origin."""
