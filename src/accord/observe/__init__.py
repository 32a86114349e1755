"""What can be read off the log: token ledger, critical path, tax report."""
