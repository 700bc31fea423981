"""Every site's columns times its gate."""
