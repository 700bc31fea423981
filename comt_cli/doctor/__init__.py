"""What `comt doctor` looks at. Importing it imports no torch."""
