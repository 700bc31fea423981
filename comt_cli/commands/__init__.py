"""Options of the command line, their completion, and help. The verbs are in `verbs`."""
