"""What the command line is made of: options, their completion, and help. The verbs are in `verbs`."""
