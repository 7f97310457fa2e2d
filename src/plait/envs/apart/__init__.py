"""Apart: a user's environment in a process of its own, for those whose code is a stranger's."""
