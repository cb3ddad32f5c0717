"""What people see: explanations, pictures of machines, the dashboard and the kubectl plug-in."""
