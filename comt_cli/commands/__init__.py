"""One file a verb: parse, call, print. At the top of these files only typer is imported; the rest where it is used,
so that `comt --help` answers at once."""
