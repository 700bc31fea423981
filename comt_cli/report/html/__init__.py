"""The results of a folder as one HTML file that needs neither a network nor a server."""
