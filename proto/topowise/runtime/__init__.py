"""What a daemon is made of besides its subject: configuration, logging, metrics and health, tasks, back-off."""
