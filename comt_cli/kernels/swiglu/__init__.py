"""silu(gate) * up of two gated sites."""
