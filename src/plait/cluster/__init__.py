"""Where workers live: processes of this machine (``local``)."""
