"""What makes the site of documentation."""
