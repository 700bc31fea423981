"""The verbs, several to a file where they share a subject. A file is imported when one of its verbs is used, and
imports what needs torch only within them."""
