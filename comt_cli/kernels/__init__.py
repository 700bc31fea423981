"""The gated projection: its definition, and everything faster that must agree with it."""
