"""What people are shown of a cluster: explanations, what fits, pictures; by the service, its page and kubectl alike.

It reads the ledger and asks the answers. It knows no protocol, no command line and no HTML, and no verb knows it.
"""
