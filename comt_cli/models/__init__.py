"""The architectures, one file each, with what they cost. A model offers sites; it names no method."""
