"""The ``plait`` command. Each verb lives in a module of its own, imported when it is called."""
