"""The verbs. A file holds verbs that share a subject and is imported when one of them is used; functions import the
modules that need torch."""
