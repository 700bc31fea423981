"""`comt doctor`: a numbered preflight of this machine."""
