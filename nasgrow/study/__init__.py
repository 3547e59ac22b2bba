"""What a study is: its file, its baselines, its trial records, its storage, its costs."""
