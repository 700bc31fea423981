"""The gated projection: its definition, everything faster that must agree with it, and the choice between them."""
