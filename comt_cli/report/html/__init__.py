"""The results of a folder as one HTML file, which needs neither a network nor a server."""
