"""The bodies of the verbs, where they need several packages; `commands` has their options and help. Those that need
torch import it, when they are imported themselves."""
