"""What trains: executors run jobs on local processes or Ray, or simulate them."""
