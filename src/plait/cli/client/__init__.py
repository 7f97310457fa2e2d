"""Client: what the verbs that ask a server do. One module per noun."""
