"""Old path of `tokencredit.integrations.verl`."""
